"""What a benchmark found, and as JSON."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..costs import ProblemSize
from ..errors import LockError, Problem
from ..size import size_text

_TORCHS_OWN = ("sdpa", "flash", "cudnn")
DETERMINISTIC = "deterministic"  # the same function by fagen's kernels that sum in a fixed order
FASTEST = "fastest"  # in place of a peer: the fastest of torch's own kernels in a cell


@dataclass(frozen=True)
class Cell:
    """One variant, one size, one direction. Seconds are medians, with the 20th and 80th percentile; ``operations``
    counts admitted pairs only.

    ``how`` is "" for single calls, else "sustained", "graph", both, or "host", whose seconds are the host's.
    ``aligned`` is the case whose rate this one is compared with.
    """

    variant: str
    dtype: str
    direction: str
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    value_dim: int
    operations: float
    seconds: dict[str, float]
    p20: dict[str, float]
    p80: dict[str, float]
    how: str = ""
    aligned: str | None = None

    @property
    def case(self) -> str:
        """Variant, size as `--size` takes it, and how it was measured."""
        size = ProblemSize(self.batch, self.heads, self.kv_heads, self.q_len, self.kv_len)
        return case_of(self.variant, size, self.how)

    @property
    def what(self) -> str:
        """Direction and how it was measured: means are over cells that have the same."""
        return f"{self.direction} {self.how}".strip()

    @property
    def on_host(self) -> bool:
        """Whether it is of the host's time, which no operations are done in."""
        return self.how == "host"

    def rate(self, who: str) -> float:
        """Operations a second."""
        return self.operations / self.seconds[who]

    def ratio(self, peer: str) -> float:
        """How many times as fast as ``peer`` fagen is."""
        return self.seconds[peer] / self.seconds["fagen"]

    def compared(self, what: str) -> float | None:
        """What a limit is on: the ratio to a peer, or to the FASTEST of torch's own; of DETERMINISTIC, what is left of
        fagen's rate with it. None where that was not measured."""
        peer = self.fastest() if what == FASTEST else what
        if peer is None or not {peer, "fagen"} <= self.seconds.keys():
            return None
        return self.seconds["fagen"] / self.seconds[peer] if peer == DETERMINISTIC else self.ratio(peer)

    def spread(self, who: str) -> float:
        """From the 20th to the 80th percentile, over the median."""
        return (self.p80[who] - self.p20[who]) / self.seconds[who]

    def fastest(self) -> str | None:
        """The faster of torch's own kernels, if one was measured."""
        known = [name for name in _TORCHS_OWN if name in self.seconds]
        return min(known, key=self.seconds.__getitem__, default=None)


def case_of(variant: str, size: ProblemSize, how: str = "") -> str:
    """What a cell is called."""
    return f"{variant} {size_text(size)} {how}".strip()


@dataclass(frozen=True)
class BenchReport:
    """All cells of one run on one machine, with the limits measured in it (operations a second by dtype).

    ``device`` is "cpu", or "cuda" for a card, which has no ``threads`` of torch's. ``schedules`` names, oldest first,
    the kernels of one function that were compared, if that is what was measured: no cell has "fagen" then. ``failed``
    has a line for each cell that ended with an error.
    """

    machine: str
    torch: str
    threads: int | None
    isa: str
    peak: dict[str, float]
    cells: tuple[Cell, ...]
    device: str = "cpu"
    schedules: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()

    @property
    def against(self) -> str:
        """The peer that ratios are asked for against: torch's own attention as it is, on a card its flash backend."""
        return "sdpa" if self.device == "cpu" else "flash"

    @property
    def unit(self) -> tuple[str, float]:
        """What rates are shown in, and how many operations a second that is."""
        return ("GFLOP/s", 1e9) if self.device == "cpu" else ("TFLOP/s", 1e12)

    @property
    def place(self) -> str:
        """Machine and torch."""
        threads = "" if self.threads is None else f"{self.threads} threads, "
        return f"{self.machine}, {threads}torch {self.torch}"

    def peers(self) -> list[str]:
        """Who stands beside fagen, in order of appearance."""
        own = ("fagen", DETERMINISTIC)
        return list(dict.fromkeys(name for cell in self.cells for name in cell.seconds if name not in own))

    def torchs_own(self) -> list[str]:
        """Which of torch's own kernels were measured."""
        return [name for name in _TORCHS_OWN if name in self.peers()]

    def whats(self) -> list[str]:
        """What there are means of, in order of appearance: "forward", "backward", "forward sustained" ..."""
        return list(dict.fromkeys(cell.what for cell in self.cells))

    def geometric_mean(self, peer: str, what: str) -> float | None:
        """Of the ratios to ``peer``, as Cell.compared has them, over the cells of ``what`` that have it; None where
        none has."""
        found = [ratio for cell in self.cells if cell.what == what and (ratio := cell.compared(peer)) is not None]
        return math.exp(sum(map(math.log, found)) / len(found)) if found else None

    def short_of(self, limits: Mapping[str, float]) -> list[str]:
        """A line for each of ``limits`` that ratios miss, or that none was measured for.

        "forward" and "backward" are of the geometric mean of a direction, however it was measured, "cell" of each cell;
        behind a slash is what they are compared with, else it is ``against``.
        """
        found = []
        for asked, limit in limits.items():
            what, peer = self.parts_of(asked)
            if what == "cell":
                known = [
                    (f"{cell.variant} {cell.what} {cell.q_len}×{cell.kv_len}", ratio)
                    for cell in self.cells
                    if (ratio := cell.compared(peer)) is not None
                ]
            else:
                means = {each: self.geometric_mean(peer, each) for each in self.whats() if each.split()[0] == what}
                known = [(f"{each}, in geometric mean", mean) for each, mean in means.items() if mean is not None]
            if not known:
                found.append(f"{what}: no cell has {peer}")
            found += [f"{name}: {ratio:.3f}× {peer}, asked for {limit}×" for name, ratio in known if not ratio >= limit]
        return found

    def parts_of(self, limit: str) -> tuple[str, str]:
        """`backward/cudnn` as ("backward", "cudnn")."""
        what, _, peer = limit.partition("/")
        return what, peer or self.against

    def measurements(self) -> list[dict[str, Any]]:
        """A dict for each time that was measured: {case, dir, peer, ms, p20, p80, tflops}.

        ``ms`` is the median, ``p20`` and ``p80`` are percentiles, in milliseconds all; ``tflops`` is None of the
        host's time.
        """
        return [
            {
                "case": cell.case,
                "dir": cell.direction,
                "peer": who,
                "ms": _digits(seconds * 1e3),
                "p20": _digits(cell.p20[who] * 1e3),
                "p80": _digits(cell.p80[who] * 1e3),
                "tflops": None if cell.on_host else _digits(cell.rate(who) / 1e12),
            }
            for cell in self.cells
            for who, seconds in cell.seconds.items()
        ]

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, with the derived means."""
        means = {
            f"{what} / {peer}": mean
            for what in self.whats()
            for peer in (*self.peers(), DETERMINISTIC)
            if (mean := self.geometric_mean(peer, what)) is not None
        }
        cells = [{"case": cell.case, **asdict(cell)} for cell in self.cells]
        return {**asdict(self), "cells": cells, "against": self.against, "geometric_mean": means}

    def write_json(self, path: Path) -> None:
        """The measurements into a file, one a line. Raises LockError if it cannot be written."""
        lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in self.measurements())
        with writing(path):
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _digits(number: float) -> float:
    """Six of them: more than a clock has."""
    return float(f"{number:.6g}")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises LockError where ``path`` cannot be written."""
    try:
        yield
    except OSError as error:
        raise LockError(Problem(f"{path} cannot be written: {error.strerror}", hint="choose another file")) from None
