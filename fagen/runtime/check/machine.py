"""What runs the kernels of a check, as the check sees it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..variant import Variant
from .cases import Case
from .report import Unrun

# Small cases with a few tiles and with edges: in these the emulator tries this many random orders.
SHUFFLED = ("tile-plus-1", "ring")
SHUFFLES = 10


class Emulator(Protocol):
    """fagen.emulate.driver.Emulator."""

    folder: Path
    fault: Exception | None

    def prepare(self, unit: str) -> None:
        """Have a unit's kernels ready to be launched."""

    def order(self, completions: str, seed: int) -> None:
        """How the launches to come are carried out."""

    def lines(self, unit: str) -> Mapping[int, int]:
        """How often each line of a unit's source ran that has instructions."""


@dataclass(frozen=True)
class Machine:
    """``device`` is torch's name for where the tensors are; ``title`` as in :class:`.where.Where`."""

    device: str = "cpu"
    title: str = ""
    emulator: Emulator | None = None

    def prepare(self, variant: Variant) -> None:
        """Do what takes long before a variant's kernels first run, so that it is not in any budget. What goes wrong
        here shows again as they run."""
        if self.emulator is not None:
            for direction in variant.directions:
                with suppress(Exception):
                    self.emulator.prepare(f"{variant.name}_{direction}")

    def orders(self, case: Case, seed: int) -> Iterator[str]:
        """Goes through the orders in which a case is to be run, giving each its name for reports; "" where the machine
        itself decides.

        Asynchronous copies arrive as early as they may, as late, and at random; warps take turns at random.
        """
        if self.emulator is None:
            yield ""
            return
        random = SHUFFLES if case.name in SHUFFLED else 1
        for n, completions in enumerate(("earliest", "latest", *("random",) * random)):
            self.emulator.fault = None
            self.emulator.order(completions, seed + n)
            yield f"completions {completions}, order {seed + n}"

    def fault(self) -> str:
        """What the emulator found wrong since the last order began; "" if nothing."""
        found = None if self.emulator is None else self.emulator.fault
        return "" if found is None else str(found)

    def unrun(self, variant: Variant) -> tuple[int, tuple[Unrun, ...], str]:
        """How many lines of a variant's rendered kernels can run, which of them never did, and why that is not known,
        if it is not. Those of kernels for the CPU are counted elsewhere, by the build."""
        if self.emulator is None:
            return 0, (), "" if self.device == "cpu" else "lines not counted: that takes a check in the emulator"
        total = 0
        unrun: list[Unrun] = []
        for direction in variant.directions:
            unit = f"{variant.name}_{direction}"
            counts = self.emulator.lines(unit)
            file = f"{unit}.cu"
            text = (self.emulator.folder / "sources" / file).read_text(encoding="utf-8").splitlines()
            total += len(counts)
            unrun += (Unrun(file, line, text[line - 1].strip()) for line in sorted(counts) if counts[line] == 0)
        return total, tuple(unrun), ""
