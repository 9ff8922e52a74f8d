"""A benchmark's cells as people read them: tables, and a few lines of what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from .report import DETERMINISTIC, BenchReport, Cell

_NONE = "–"
Row = list[str]


def tables(report: BenchReport) -> Iterator[list[Row]]:
    """Each with a head: of rates, and of the host's times, which are no rates; of those that there are."""
    if report.schedules:
        yield generations(report)
        return
    if any(not cell.on_host for cell in report.cells):
        yield rates(report)
    if any(cell.on_host for cell in report.cells):
        yield host_times(report)


def rates(report: BenchReport) -> list[Row]:
    """A head, a row a cell, and a row a mean."""
    cells = [cell for cell in report.cells if not cell.on_host]
    unit, per = report.unit
    aligned = {(cell.case, cell.direction): cell.rate("fagen") for cell in cells}
    beside = any(cell.aligned for cell in cells)
    twins = any(DETERMINISTIC in cell.seconds for cell in cells)
    head = ["variant", "pass", "B H/Hk Sq×Skv", unit, "of peak", "±", *["aligned"] * beside, *[DETERMINISTIC] * twins]

    def own(cell: Cell) -> Row:
        limit = report.peak.get(cell.dtype, report.peak.get("f32"))
        rate = cell.rate("fagen")
        other = aligned.get((cell.aligned or "", cell.direction))
        left = cell.compared(DETERMINISTIC)
        return [
            f"{rate / per:.1f}",
            f"{100 * rate / limit:.0f} %" if limit else _NONE,
            _spread(cell),
            *[f"{rate / other:.2f}×" if other else _NONE] * beside,
            *[f"{left:.2f}×" if left else _NONE] * twins,
        ]

    return _rows(report, cells, head, own, lambda cell, peer: f"{cell.rate(peer) / per:.1f}")


def host_times(report: BenchReport) -> list[Row]:
    """The same in microseconds of the host's."""
    cells = [cell for cell in report.cells if cell.on_host]
    head = ["variant", "pass", "B H/Hk Sq×Skv", "µs", "±"]
    return _rows(
        report,
        cells,
        head,
        lambda cell: [f"{1e6 * cell.seconds['fagen']:.1f}", _spread(cell)],
        lambda cell, peer: f"{1e6 * cell.seconds[peer]:.1f}",
    )


def _rows(
    report: BenchReport,
    cells: Sequence[Cell],
    head: Row,
    own: Callable[[Cell], Row],
    figure: Callable[[Cell, str], str],
) -> list[Row]:
    """``own`` is what stands of fagen in a row, behind which are the peers' ``figure`` and ratio."""
    peers = [peer for peer in report.peers() if any(peer in cell.seconds for cell in cells)]
    rows = [head + [text for peer in peers for text in (peer, "ratio")]]
    for cell in cells:
        row = [cell.variant, cell.what, _size(cell), *own(cell)]
        for peer in peers:
            row += [figure(cell, peer), f"{cell.ratio(peer):.2f}×"] if peer in cell.seconds else [_NONE, _NONE]
        rows.append(row)
    for what in dict.fromkeys(cell.what for cell in cells):
        means = [report.geometric_mean(peer, what) for peer in peers]
        if any(means):
            texts = [text for mean in means for text in ("", f"{mean:.2f}×" if mean else _NONE)]
            rows.append(["geometric mean", what, *[""] * (len(head) - 2), *texts])
    return rows


def generations(report: BenchReport) -> list[Row]:
    """Rates of the schedules, oldest first, each but the first with its ratio to the one before it in the row."""
    unit, per = report.unit
    first, *later = report.schedules
    head = ["variant", "pass", "B H/Hk Sq×Skv", f"{first} {unit}"]
    rows = [head + [text for name in later for text in (name, "ratio")]]
    for cell in report.cells:
        row = [cell.variant, cell.what, _size(cell)]
        before: str | None = None
        for name in report.schedules:
            known = name in cell.seconds
            row.append(f"{cell.rate(name) / per:.1f}" if known else _NONE)
            if name != first:
                row.append(f"{cell.rate(name) / cell.rate(before):.2f}×" if known and before else _NONE)
            before = name if known else before
        rows.append(row)
    return rows


def _size(cell: Cell) -> str:
    heads = f"{cell.heads}" if cell.heads == cell.kv_heads else f"{cell.heads}/{cell.kv_heads}"
    return f"{cell.batch} {heads} {cell.q_len}×{cell.kv_len}"


def _spread(cell: Cell) -> str:
    return f"{100 * cell.spread('fagen'):.0f} %"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns, each as wide as its widest cell; nothing is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def summary(report: BenchReport, limits: Mapping[str, float] | None = None) -> Sequence[str]:
    """A line a peer and direction, the least ratios, whom ``limits`` are of, the machine and its peak, for people who
    read one line."""
    lines = [
        f"{what}: {mean:.2f}× {peer} (geometric mean)"
        for what in report.whats()
        for peer in report.peers()
        if (mean := report.geometric_mean(peer, what)) is not None
    ]
    lines += [line for what in report.whats() if (line := _least(report, what))]
    lines += [line for what in report.whats() if (line := _price(report, what))]
    if limits:
        parts = [(*report.parts_of(asked), limit) for asked, limit in limits.items()]
        lines.append("asked for: " + ", ".join(f"{what} at least {limit:g}× {peer}" for what, peer, limit in parts))
    lines.append(f"on {report.place}")
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


def _least(report: BenchReport, what: str) -> str:
    """The cell with the least ratio to the faster of torch's own kernels, where there are several of those."""
    ratios = [
        (cell.ratio(peer), cell)
        for cell in report.cells
        if cell.what == what and "fagen" in cell.seconds and (peer := cell.fastest())
    ]
    own = report.torchs_own()
    if len(own) < 2 or not ratios:
        return ""
    ratio, cell = min(ratios, key=lambda each: each[0])
    return f"{what}: {ratio:.2f}× the faster of {' and '.join(own)}, at least ({cell.case})"


def _price(report: BenchReport, what: str) -> str:
    """What is left of the rate with `deterministic: true`, where that was measured."""
    found = [(left, cell) for cell in report.cells if cell.what == what and (left := cell.compared(DETERMINISTIC))]
    if not found:
        return ""
    least, cell = min(found, key=lambda each: each[0])
    mean = report.geometric_mean(DETERMINISTIC, what)
    return (
        f"{what}: deterministic at {mean:.2f}× the rate without (geometric mean), {least:.2f}× at least ({cell.case})"
    )
