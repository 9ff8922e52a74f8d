"""What a benchmark found: rows that print as a table, as JSON, and as a picture."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import FagenError, LockError, Problem


@dataclass(frozen=True)
class Cell:
    """One variant, one size, one direction. Seconds are medians; ``operations`` counts admitted pairs only."""

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
    spread: dict[str, float]

    def rate(self, who: str) -> float:
        """Operations a second."""
        return self.operations / self.seconds[who]

    def ratio(self, peer: str) -> float:
        """How many times as fast as ``peer`` fagen is."""
        return self.seconds[peer] / self.seconds["fagen"]


@dataclass(frozen=True)
class BenchReport:
    """All cells of one run on one machine, with the limits measured in it (operations a second by dtype).

    ``device`` is "cpu", or "cuda" for a card, which has no ``threads`` of torch's.
    """

    machine: str
    torch: str
    threads: int | None
    isa: str
    peak: dict[str, float]
    cells: tuple[Cell, ...]
    device: str = "cpu"

    @property
    def against(self) -> str:
        """The peer that ratios are asked for against: torch's own attention as it is, on a card its flash backend."""
        return "sdpa" if self.device == "cpu" else "flash"

    @property
    def unit(self) -> tuple[str, float]:
        """What rates are shown in, and how many operations a second that is."""
        return ("GFLOP/s", 1e9) if self.device == "cpu" else ("TFLOP/s", 1e12)

    def peers(self) -> list[str]:
        """Who stands beside fagen, in order of appearance."""
        return list(dict.fromkeys(name for cell in self.cells for name in cell.seconds if name != "fagen"))

    def geometric_mean(self, peer: str, direction: str) -> float | None:
        """Of the ratios to ``peer`` over the cells that have it; None where none has."""
        ratios = [cell.ratio(peer) for cell in self.cells if cell.direction == direction and peer in cell.seconds]
        return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None

    def short_of(self, limits: Mapping[str, float]) -> list[str]:
        """A line for each of ``limits`` that the ratios to the peer ``against`` miss, or that none was measured for.

        "forward" and "backward" are of the geometric mean of a direction, "cell" of each cell.
        """
        peer = self.against
        cells = [cell for cell in self.cells if peer in cell.seconds]
        ratios = [(f"{c.variant} {c.direction} {c.q_len}×{c.kv_len}", c.ratio(peer)) for c in cells]
        found = []
        for what, limit in limits.items():
            if what == "cell":
                known = ratios
            else:
                mean = self.geometric_mean(peer, what)
                known = [] if mean is None else [(f"{what}, in geometric mean", mean)]
            if not known:
                found.append(f"{what}: no cell has {peer}")
            found += [f"{name}: {ratio:.3f}× {peer}, asked for {limit}×" for name, ratio in known if ratio < limit]
        return found

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, with the derived means."""
        means = {
            f"{direction} / {peer}": mean
            for direction in ("forward", "backward")
            for peer in self.peers()
            if (mean := self.geometric_mean(peer, direction)) is not None
        }
        return {**asdict(self), "against": self.against, "geometric_mean": means}

    def write_json(self, path: Path) -> None:
        """The same, into a file. Raises LockError if it cannot be written."""
        with _writing(path):
            path.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")

    def rows(self) -> list[list[str]]:
        """A table: a head, a row a cell, and a row a mean."""
        peers = self.peers()
        unit, rate = self.unit
        head = ["variant", "pass", "B H/Hk Sq×Skv", unit, "of peak", "±"]
        rows = [head + [text for peer in peers for text in (peer, "ratio")]]
        for cell in self.cells:
            heads = f"{cell.heads}" if cell.heads == cell.kv_heads else f"{cell.heads}/{cell.kv_heads}"
            limit = self.peak.get(cell.dtype, self.peak.get("f32"))
            row = [
                cell.variant,
                cell.direction,
                f"{cell.batch} {heads} {cell.q_len}×{cell.kv_len}",
                f"{cell.rate('fagen') / rate:.1f}",
                f"{100 * cell.rate('fagen') / limit:.0f} %" if limit else "–",
                f"{100 * cell.spread['fagen']:.0f} %",
            ]
            for peer in peers:
                known = peer in cell.seconds
                row += [f"{cell.rate(peer) / rate:.1f}", f"{cell.ratio(peer):.2f}×"] if known else ["–", "–"]
            rows.append(row)
        for direction in ("forward", "backward"):
            means = [self.geometric_mean(peer, direction) for peer in peers]
            if any(means):
                cells = [text for mean in means for text in ("", f"{mean:.2f}×" if mean else "–")]
                rows.append(["geometric mean", direction, "", "", "", "", *cells])
        return rows


def draw(report: BenchReport, path: Path) -> None:
    """Bars of operations a second, a group a cell, fagen beside its peers, the peak as a line. Needs the `plot` extra.

    Raises FagenError without it, LockError if ``path`` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FagenError("drawing needs matplotlib, the `plot` extra: pip install 'fagen[plot]'") from error
    names = ["fagen", *report.peers()]
    unit, per = report.unit
    figure = Figure(figsize=(2.5 + 0.45 * len(report.cells), 5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [n + index * width for n, cell in enumerate(report.cells) if name in cell.seconds]
        axes.bar(places, [cell.rate(name) / per for cell in report.cells if name in cell.seconds], width, label=name)
    for dtype, rate in report.peak.items():
        axes.axhline(rate / per, linestyle=":", linewidth=1, color="grey")
        axes.annotate(f"{dtype} peak", (0, rate / per), fontsize=8, va="bottom", color="grey")
    labels = [f"{cell.variant}\n{cell.direction} {cell.q_len}" for cell in report.cells]
    axes.set_xticks([n + 0.4 for n in range(len(labels))], labels, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(f"{unit} over admitted pairs")
    axes.set_title(_place(report), fontsize=9)
    axes.legend()
    with _writing(path):
        figure.savefig(path, dpi=130, format="png")


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns, each as wide as its widest cell; nothing is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def summary(report: BenchReport, limits: Mapping[str, float] | None = None) -> Sequence[str]:
    """A line a peer and direction, whom ``limits`` are of, the machine and its peak, for people who read one line."""
    lines = [
        f"{direction}: {mean:.2f}× {peer} (geometric mean)"
        for direction in ("forward", "backward")
        for peer in report.peers()
        if (mean := report.geometric_mean(peer, direction)) is not None
    ]
    if limits:
        asked = ", ".join(f"{what} at least {limit:g}×" for what, limit in limits.items())
        lines.append(f"asked for, of {report.against}: {asked}")
    lines.append(f"on {_place(report)}")
    if report.peak:
        unit, per = report.unit
        peaks = ", ".join(f"{dtype} {rate / per:.0f} {unit}" for dtype, rate in report.peak.items())
        what = (
            f"of {report.threads} threads that multiply and add in registers"
            if report.device == "cpu"
            else "of torch's product of two large matrices"
        )
        lines.append(f"peak, {what}: {peaks}")
    return lines


def _place(report: BenchReport) -> str:
    threads = "" if report.threads is None else f"{report.threads} threads, "
    return f"{report.machine}, {threads}torch {report.torch}"


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LockError(Problem(f"{path} cannot be written: {error.strerror}", hint="choose another file")) from None
