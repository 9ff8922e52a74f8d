"""A mask's tile test and limits, carried out in Python: what the printed C++ does, for `explain` and for tests."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..runtime.variant import Variant
from . import bounds
from .analysis import MaskAnalysis, analyse
from .bounds import Reals, Span, Tri
from .conditions import Equal, Linear, Literal, Ordered, nodes_of
from .emit import lowered
from .graph import Graph, Node, below, floor_div, floor_mod
from .intervals import Walker
from .limits import Between, Both, Either, Limit, When
from .regions import HalfPlane, Pairs, Ranges, Values, intersect, may_share, unite
from .sizes import INT64
from .tiles import Conjunction, EachOf, Possible, shared, strip

_HULL_LIMIT = 1 << 14  # larger parts of a param are not looked through

_OPERATORS: dict[tuple[str, int], Callable[..., Any]] = {
    ("+", 2): operator.add,
    ("-", 2): operator.sub,
    ("-", 1): operator.neg,
    ("*", 2): operator.mul,
    ("/", 2): operator.truediv,
    ("!", 1): operator.invert,
    ("&", 2): operator.and_,
    ("|", 2): operator.or_,
}
_EXACT: dict[str, Callable[..., Any]] = {
    "neg": operator.neg,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": floor_div,
    "mod": floor_mod,
    "min": min,
    "max": max,
    "abs": abs,
    "lt": operator.lt,
    "le": operator.le,
    "eq": operator.eq,
    "not": operator.not_,
    "and": lambda *args: all(args),
    "or": lambda *args: any(args),
    "select": lambda test, yes, no: yes if test else no,
}


@dataclass(frozen=True)
class Work:
    """One batch entry and head: what a kernel knows at run time.

    ``params`` are arrays (anything with ``shape`` and tuple indexing, such as numpy's) by name.
    """

    b: int
    h: int
    hk: int
    q_len: int
    kv_len: int
    params: Mapping[str, Any]


class MaskBounds:
    """The tile test and loop limits of a variant's mask."""

    def __init__(self, variant: Variant):
        graph = Graph()
        self._analysis = analyse(graph, variant, lowered(graph, variant)[1])
        self._masked = variant.mask is not None

    def tile_test(self, work: Work, q: Span, kv: Span) -> Tri:
        """Of the pairs of a tile of positions, how many the mask admits. The tile holds existing rows and keys only."""
        if not self._masked:
            return Tri.ALL
        if not _possible(self._analysis.admits, _Tile(self._analysis, work, q, kv)):
            return Tri.NONE
        return Tri.SOME if _possible(self._analysis.refuses, _Tile(self._analysis, work, q, kv)) else Tri.ALL

    def key_ranges(self, work: Work, q: Span) -> Ranges:
        """The key indexes that some row at these positions may see."""
        domain = Span(0, work.kv_len - 1)
        return _limit(self._analysis.keys, _Tile(self._analysis, work, q, domain), domain, "q")

    def query_ranges(self, work: Work, kv: Span) -> Ranges:
        """The row indexes that may see some key at these positions."""
        first = work.kv_len - work.q_len if self._analysis.bottom_right else 0
        domain = Span(first, first + work.q_len - 1)
        ranges = _limit(self._analysis.queries, _Tile(self._analysis, work, domain, kv), domain, "kv")
        return ranges.shifted(-first)


class _Tile:
    """The Backend whose values are intervals."""

    def __init__(self, analysis: MaskAnalysis, work: Work, q: Span, kv: Span):
        self.analysis = analysis
        self.work = work
        self.q = q
        self.kv = kv
        self.walker = Walker(self, analysis.sizes)

    def shrunk(self, pairs: Pairs) -> _Tile:
        return _Tile(self.analysis, self.work, pairs.q, pairs.kv)

    def position(self, name: str) -> Span:
        return self.q if name == "q" else self.kv

    def exact(self, node: Node) -> Span | Tri:
        value = self.value(node)
        return bounds.tri(value) if node.type == "bool" else bounds.point(value)

    def constant(self, value: float) -> Reals:
        return bounds.reals(value)

    def step(self, kind: str, step: str, arguments: list[Any], node: Node) -> Any:
        function = _OPERATORS.get((step, len(arguments))) or getattr(bounds, step)
        return function(*arguments)

    def value(self, node: Node) -> Any:
        """An integer or truth value that is the same for all pairs."""
        done: dict[Node, Any] = {}
        for part in below((node,)):
            done[part] = self._value(part, [done[arg] for arg in part.args])
        return done[node]

    def _value(self, node: Node, args: list[Any]) -> Any:
        if node.op == "const":
            return node.value
        if node.op == "name":
            return getattr(self.work, str(node.value))
        if node.op != "read":
            found = _EXACT[node.op](*args)
            return found if node.type == "bool" else (found + 2**63) % 2**64 - 2**63  # as 64 bits do
        array = self.work.params[str(node.value)]
        inside = all(0 <= index < size for index, size in zip(args, array.shape, strict=True))
        element = array[tuple(args)] if inside else 0
        return bool(element) if node.type == "bool" else int(element)

    def hull(self, kind: str, param: str, indices: list[Span], node: Node) -> Span | Reals:
        inside, outside = self._inside(param, indices)
        zero: Any = bounds.point(0) if kind == "Span" else bounds.reals(0.0)
        if inside is None:
            return self._anything(node)
        if inside.size == 0:
            return zero
        found: Any
        if kind == "Span":
            found = Span(int(inside.min()), int(inside.max()))
        else:
            low, high = float(inside.min()), float(inside.max())
            found = Reals(low, high, False) if low <= high else bounds.unknown_real()  # not so if NaN is among them
        return bounds.join(zero, found) if outside else found

    def values(self, read: Node) -> Values:
        """The integers that a read gives over the tile."""
        inside, outside = self._inside(str(read.value), [self.walker.walk(index) for index in read.args])
        if inside is None:
            return Values(Span(*self.analysis.sizes.range(read)))
        return Values.of([*map(int, inside.reshape(-1)), *([0] if outside else [])])

    def _inside(self, param: str, indices: list[Span]) -> tuple[Any, bool]:
        """The entries in a box of indexes (None: too many), and whether the box reaches outside the extents."""
        array = self.work.params[param]
        parts = [Span(max(span.lo, 0), min(span.hi, size - 1)) for span, size in zip(indices, array.shape, strict=True)]
        counts = [max(part.hi - part.lo + 1, 0) for part in parts]
        if math.prod(counts) > _HULL_LIMIT:
            return None, False
        slices = (slice(part.lo, part.lo + count) for part, count in zip(parts, counts, strict=True))
        return array[tuple(slices)], parts != indices

    def _anything(self, node: Node) -> Span | Reals:
        if node.type == "real":
            return bounds.unknown_real()
        return Span(0, 1) if node.type == "bool" else Span(*self.analysis.sizes.range(node))


def _possible(test: Possible, tile: _Tile) -> bool:
    if not isinstance(test, Conjunction):
        every = isinstance(test, EachOf)
        return (all if every else any)(_possible(part, tile) for part in test.parts)
    if test.linear:
        pairs, planes = Pairs(tile.q, tile.kv), []
        for linear in test.linear:
            cut = strip(tile.analysis.graph, linear)
            if cut is None:
                planes.append(HalfPlane(linear.of_q, linear.of_kv, tile.value(linear.rest.node(tile.analysis.graph))))
                continue
            old, bound = getattr(pairs, cut.of), tile.value(cut.bound)
            new = old.at_least(bound) if cut.at_least else old.at_most(bound)
            pairs = Pairs(**{**pairs.__dict__, cut.of: new})
        left = pairs.narrow(planes)
        if left is None:
            return False
        tile = tile.shrunk(left)
    return all(_truth(literal, tile) is not Tri.NONE and _shares(literal, test.others, tile) for literal in test.others)


def _shares(literal: Literal, others: tuple[Literal, ...], tile: _Tile) -> bool:
    """False where two reads must be equal, and are for no pair of the tile."""
    pair = shared(literal, others, tile.walker.is_exact) if isinstance(literal, Equal) else None
    if pair is None or not tile.walker.can_walk(pair.left, pair.right):
        return True
    allowed = Span(*INT64)
    for node in pair.least:
        allowed = allowed.at_least(tile.value(node))
    for node in pair.most:
        allowed = allowed.at_most(tile.value(node))
    return may_share(tile.values(pair.left), tile.values(pair.right), allowed)


def _truth(literal: Literal, tile: _Tile) -> Tri:
    if isinstance(literal, Linear):
        return Tri.SOME if _possible(Conjunction((literal,), ()), tile) else Tri.NONE
    if not tile.walker.can_walk(*nodes_of(literal)):
        return Tri.SOME
    values = [tile.walker.walk(node) for node in nodes_of(literal)]
    if isinstance(literal, Ordered):
        return bounds.less_equal(*values)
    found = bounds.equal(*values) if isinstance(literal, Equal) else values[0]
    return found if literal.wanted else ~found


def _limit(limit: Limit, tile: _Tile, domain: Span, span: str) -> Ranges:
    everything = Ranges.between(domain.lo, domain.hi + 1)
    if isinstance(limit, Both):
        found = everything
        for part in limit.parts:
            found = intersect(found, _limit(part, tile, domain, span))
        return found
    if isinstance(limit, Either):
        found = Ranges()
        for part in limit.parts:
            found = unite(found, _limit(part, tile, domain, span))
        return found
    if isinstance(limit, When):
        return Ranges() if _truth(limit.literal, tile) is Tri.NONE else everything
    assert isinstance(limit, Between)
    first, last = domain.lo, domain.hi + 1
    graph = tile.analysis.graph
    for bound in limit.bounds:
        top = tile.walker.walk(bound.others.node(graph)).hi
        reach = tile.value(bound.rest.node(graph)) + bound.scale * top
        if bound.factor > 0:
            first = max(first, -(reach // bound.factor))
        else:
            last = min(last, reach // -bound.factor + 1)
    return Ranges.between(first, last)
