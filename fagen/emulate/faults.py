"""What a launch can do wrong, as errors that say where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .places import Said


class EmulationError(RuntimeError):
    """A launch that cannot be run as asked: bad arguments, or PTX that the emulator does not know."""


# By machine.h's FaultKind.
KINDS = (
    "race",
    "uninitialised",
    "out of bounds",
    "misaligned",
    "read only",
    "deadlock",
    "barrier",
    "collective",
    "mbarrier",
    "limits",
    "trap",
    "program",
    "endless",
    "proxy",
    "wgmma",
    "tensor map",
)
_NOTHING = Said("", 0, "", (), (), ())
_SPACES = ("generic", "global", "shared", "local", "param", "const")


@dataclass(frozen=True)
class At:
    """An instruction and who was at it: ``text`` of the PTX at line ``line``; ``source`` is "file:line" where the PTX
    says it (nvcc -lineinfo), else ""; ``inlined`` where such code was inlined, as far as the PTX tells."""

    text: str
    line: int
    source: str
    inlined: tuple[str, ...]
    block: tuple[int, ...]
    thread: tuple[int, ...]

    def __str__(self) -> str:
        who = f"block {_tuple(self.block)} thread {_tuple(self.thread)}"
        places = [self.source, *(f"inlined at {place}" for place in self.inlined[:3])]
        source = f" ({', '.join(places)}{', ...' if len(self.inlined) > 3 else ''})" if self.source else ""
        return f"{who}, PTX line {self.line}{source}: {self.text}" if self.line else who


class Fault(Exception):
    """A mistake of a kernel's, found while it ran.

    ``kind`` is one of :data:`KINDS`; ``at`` where it was found, ``other`` the access it conflicts with, for a race;
    ``space``, ``address`` and ``bytes`` are of the access, where there is one.
    """

    def __init__(
        self,
        kind: str,
        what: str,
        at: At | None = None,
        other: At | None = None,
        space: str = "",
        address: int = 0,
        bytes: int = 0,
    ):
        self.kind, self.what, self.at, self.other = kind, what, at, other
        self.space, self.address, self.bytes = space, address, bytes
        lines = [f"{kind}: {what}"]
        if bytes:
            lines.append(f"  {space} memory at {address:#x}, {bytes} bytes")
        if at is not None:
            lines.append(f"  {at}")
        if other is not None:
            lines.append(f"  and {other}")
        super().__init__("\n".join(lines))


def fault_from(report: Mapping[str, Any], instructions: Sequence[Said], kernel: str) -> Fault:
    """The Fault that the machine's ``report`` tells, which names ``instructions`` by their indices."""

    def at(where: Mapping[str, Any] | None) -> At | None:
        if where is None:
            return None
        index = where["instruction"]
        said = instructions[index] if 0 <= index < len(instructions) else _NOTHING
        return At(said.text, said.line, said.source, said.inlined, tuple(where["block"]), tuple(where["thread"]))

    return Fault(
        KINDS[report["kind"]],
        f"{report['what']}, in {kernel}",
        at(report["where"]),
        at(report["other"]),
        _SPACES[report["space"]],
        report["address"],
        report["bytes"],
    )


def _tuple(three: Sequence[int]) -> str:
    """(3) for (3, 0, 0)."""
    last = max((n for n, each in enumerate(three) if each), default=0)
    return f"({', '.join(map(str, three[: last + 1]))})"
