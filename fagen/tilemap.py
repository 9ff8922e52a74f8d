"""The tiles of a mask, drawn: which are skipped, which run without mask code, which with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .costs import ProblemSize
from .expr.bounds import Span, Tri
from .expr.evaluate import MaskBounds, Work
from .plan import Plan

SKIPPED, FULL, PARTIAL, IN_VAIN = "·", "█", "▒", "!"
_LEGEND = {
    FULL: "full, no mask code",
    PARTIAL: "partial",
    IN_VAIN: "partial, yet nothing admitted",
    SKIPPED: "never run",
}
_WIDEST = 64  # cells a line; a larger map is drawn with several tiles a cell
_MOST_PAIRS = 1 << 26  # of a mask taken element by element


@dataclass(frozen=True)
class TileMap:
    """``rows`` has a string a row of tiles, a character a tile. ``admitted`` is how many pairs the mask admits in all.

    A kernel visits a tile if it lies in the loop limits and its test does not rule it out.
    """

    tile_q: int
    tile_kv: int
    rows: tuple[str, ...]
    admitted: float

    def count(self, kind: str) -> int:
        """Tiles of one kind: SKIPPED, FULL, PARTIAL (with those in vain) or IN_VAIN."""
        found = sum(row.count(kind) for row in self.rows)
        return found + (self.count(IN_VAIN) if kind == PARTIAL else 0)

    @property
    def total(self) -> int:
        """All tiles of the score matrix."""
        return sum(map(len, self.rows))

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars."""
        counts = {"total": self.total, "full": self.count(FULL), "partial": self.count(PARTIAL)}
        return {
            "tile_q": self.tile_q,
            "tile_kv": self.tile_kv,
            **counts,
            "empty": self.count(IN_VAIN),
            "admitted_pairs": self.admitted,
            "map": list(self.rows),
        }

    def lines(self) -> Iterator[str]:
        """The map, its legend and the counts."""
        step = -(-max(1, len(self.rows), *map(len, self.rows)) // _WIDEST)
        for start in range(0, len(self.rows), step):
            block = self.rows[start : start + step]
            width = len(block[0])
            yield "  " + "".join(_cell({row[c] for row in block for c in range(x, min(x + step, width))})
                                 for x in range(0, width, step))  # fmt: skip
        if step > 1:
            yield f"  (a character is {step} × {step} tiles)"
        yield "  " + ", ".join(f"{kind} {meaning}: {self.count(kind)}" for kind, meaning in _LEGEND.items())


def _cell(kinds: set[str]) -> str:
    """One character for several tiles."""
    if IN_VAIN in kinds:
        return IN_VAIN
    return kinds.pop() if len(kinds) == 1 else PARTIAL


def tile_map(plan: Plan, size: ProblemSize) -> TileMap:
    """The forward kernel's tiles at a size, for the first batch entry and head.

    Loop limits and tile test are those of the kernel, carried out in Python. Where the mask is too large to be taken
    element by element, tiles in vain are not told from partial ones and admitted pairs are counted as if half of each
    partial tile were.
    """
    variant = plan.variant
    tile_q, tile_kv = plan.forward.tile_q, plan.forward.tile_kv
    size = replace(size, batch=max(size.batch, 1))  # an empty batch has no first entry, but every entry has this map
    params = _drawn_params(plan, size)
    work = Work(0, 0, 0, size.q_len, size.kv_len, params)
    bounds = MaskBounds(variant)
    exact = _mask(plan, size, params) if size.q_len * size.kv_len <= _MOST_PAIRS else None
    offset = size.kv_len - size.q_len if variant.align == "bottom_right" else 0
    rows: list[str] = []
    admitted = 0.0
    for i in range(0, size.q_len, tile_q):
        last = min(i + tile_q, size.q_len) - 1
        q = Span(i + offset, last + offset)
        ranges = bounds.key_ranges(work, q).ranges
        row = ""
        for j in range(0, size.kv_len, tile_kv):
            end = min(j + tile_kv, size.kv_len)
            pairs = (last + 1 - i) * (end - j)
            inside = None if exact is None else float(exact[i : last + 1, j:end].sum())
            visited = any(lo < end and j < hi for lo, hi in ranges)
            test = bounds.tile_test(work, q, Span(j, end - 1)) if visited else Tri.NONE
            row += _kind(test, inside)
            share = {Tri.NONE: 0.0, Tri.SOME: 0.5, Tri.ALL: 1.0}[test]
            admitted += share * pairs if inside is None else inside
        rows.append(row)
    return TileMap(tile_q, tile_kv, tuple(rows), admitted)


def _kind(test: Tri, admitted: float | None) -> str:
    if test is Tri.SOME:
        return IN_VAIN if admitted == 0 else PARTIAL
    return FULL if test is Tri.ALL else SKIPPED


def _drawn_params(plan: Plan, size: ProblemSize) -> dict[str, Any]:
    if not plan.variant.params:
        return {}
    from .runtime.check.cases import Case
    from .runtime.check.inputs import generator
    from .runtime.check.params import draw_params
    from .runtime.reference import trees

    case = Case("explain", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads, runs=True)
    expressions = [tree for tree in trees(plan.variant) if tree is not None]
    return dict(draw_params(plan.variant, expressions, case, generator(0, case.name)))


def _mask(plan: Plan, size: ProblemSize, params: dict[str, Any]) -> Any:
    """[Sq, Skv] truth values of the first batch entry and head."""
    from .runtime.reference import mask_matrix

    shape = (size.batch, size.heads, size.q_len, size.kv_len)
    return mask_matrix(plan.variant, *shape, params, size.kv_heads)[0, 0].expand(size.q_len, size.kv_len)
