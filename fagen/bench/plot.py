"""A benchmark's cells as a picture."""

from __future__ import annotations

from pathlib import Path

from ..errors import FagenError
from .report import BenchReport, writing


def draw(report: BenchReport, path: Path) -> None:
    """Bars of operations a second, a group a cell, fagen beside its peers, the peak as a line. Needs the `plot` extra.

    The host's times are left out.
    Raises FagenError without it, LockError if ``path`` cannot be written.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FagenError("drawing needs matplotlib, the `plot` extra: pip install 'fagen[plot]'") from error
    names = report.schedules or ("fagen", *report.peers())
    cells = [cell for cell in report.cells if not cell.on_host]
    unit, per = report.unit
    figure = Figure(figsize=(2.5 + 0.45 * len(cells), 5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        places = [n + index * width for n, cell in enumerate(cells) if name in cell.seconds]
        axes.bar(places, [cell.rate(name) / per for cell in cells if name in cell.seconds], width, label=name)
    for dtype, rate in report.peak.items():
        axes.axhline(rate / per, linestyle=":", linewidth=1, color="grey")
        axes.annotate(f"{dtype} peak", (0, rate / per), fontsize=8, va="bottom", color="grey")
    labels = [f"{cell.variant}\n{cell.what} {cell.q_len}" for cell in cells]
    axes.set_xticks([n + 0.4 for n in range(len(labels))], labels, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel(f"{unit} over admitted pairs")
    axes.set_title(report.place, fontsize=9)
    axes.legend()
    with writing(path):
        figure.savefig(path, dpi=130, format="png")
