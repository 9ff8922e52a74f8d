"""Interval arithmetic and lists of ranges, against brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fagen.expr import bounds
from fagen.expr.bounds import FAR, Reals, Span, Tri
from fagen.expr.graph import floor_div, floor_mod, round_f32
from fagen.expr.regions import CAPACITY, HalfPlane, Pairs, Ranges, Values, intersect, may_share, unite

_TRUTHS = {Tri.NONE: {False}, Tri.ALL: {True}, Tri.SOME: {False, True}}


def spans(reach: int = 9) -> st.SearchStrategy[Span]:
    return st.tuples(st.integers(-reach, reach), st.integers(-reach, reach)).map(lambda x: Span(min(x), max(x)))


def inside(span: Span) -> range:
    return range(span.lo, span.hi + 1)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(Tri, Tri)))
def test_three_valued_logic(a: Tri, b: Tri) -> None:
    pairs = list(itertools.product(_TRUTHS[a], _TRUTHS[b]))
    assert _TRUTHS[~a] == {not x for x in _TRUTHS[a]}
    assert _TRUTHS[a & b] == {x and y for x, y in pairs}
    assert _TRUTHS[a | b] == {x or y for x, y in pairs}
    assert _TRUTHS[bounds.same(a, b)] == {x == y for x, y in pairs}


# What each does to two integers; the hull of that over a box is exact, but for remainders.
_TWO = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "*": (lambda a, b: a * b, lambda a, b: a * b),
    "quotient": (floor_div, bounds.quotient),
    "remainder": (floor_mod, bounds.remainder),
    "lesser": (min, bounds.lesser),
    "greater": (max, bounds.greater),
}


@given(spans(), spans())
@example(Span(-3, 5), Span(0, 0))
@example(Span(5, 9), Span(4, 4))
def test_spans_of_two_arguments(a: Span, b: Span) -> None:
    for name, (exact, interval) in _TWO.items():
        values = [exact(x, y) for x in inside(a) for y in inside(b)]
        found = interval(a, b)
        assert found.lo <= min(values) and max(values) <= found.hi, name
        if name != "remainder":
            assert found == Span(min(values), max(values)), name
        elif b.lo == b.hi and len(inside(a)) <= abs(b.lo):
            assert len(inside(found)) <= max(abs(b.lo), 1)


@given(spans(), spans())
def test_comparisons_of_spans_are_exact(a: Span, b: Span) -> None:
    for name, exact in (("less", int.__lt__), ("less_equal", int.__le__), ("equal", int.__eq__)):
        values = {exact(x, y) for x in inside(a) for y in inside(b)}
        assert _TRUTHS[getattr(bounds, name)(a, b)] == values, name


@given(spans())
def test_spans_of_one_argument(a: Span) -> None:
    for exact, found in (
        (lambda x: -x, -a),
        (abs, bounds.magnitude(a)),
        (lambda x: x * x, bounds.square(a)),
    ):
        values = [exact(x) for x in inside(a)]
        assert found == Span(min(values), max(values))


_FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from(
    [round_f32(x) for x in (0.0, -0.0, 1.0, -1.0, 3e38, -3e38, 1e-45, math.inf)]
)
_REAL_TWO = {
    "+": (np.add, lambda a, b: a + b),
    "-": (np.subtract, lambda a, b: a - b),
    "*": (np.multiply, lambda a, b: a * b),
    "/": (np.divide, lambda a, b: a / b),
    "lesser": (np.minimum, bounds.lesser),
    "greater": (np.maximum, bounds.greater),
    "quotient": (np.floor_divide, bounds.quotient),
    "remainder": (np.remainder, bounds.remainder),
    "power": (np.power, bounds.power),
}
_REAL_ONE = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda x: np.float32(1 / (1 + np.exp(-np.float64(x)))),
    "softplus": lambda x: np.float32(np.logaddexp(np.float64(x), 0)),
    "whole_below": np.floor,
    "magnitude": np.abs,
    "square": np.square,
}


def _holds(interval: Reals, value: float) -> bool:
    return interval.nan if math.isnan(value) else interval.lo <= value <= interval.hi


@given(_FLOATS, _FLOATS, _FLOATS, _FLOATS, st.sampled_from(sorted(_REAL_TWO)))
def test_reals_hold_what_float32_gives(a: float, b: float, c: float, d: float, name: str) -> None:
    exact, interval = _REAL_TWO[name]
    found = interval(Reals(min(a, b), max(a, b), False), Reals(min(c, d), max(c, d), False))
    with np.errstate(all="ignore"):
        for x, y in itertools.product((a, b), (c, d)):
            assert _holds(found, float(exact(np.float32(x), np.float32(y)))), (name, x, y)


@given(_FLOATS, _FLOATS, st.sampled_from(sorted(_REAL_ONE)))
def test_functions_of_reals(a: float, b: float, name: str) -> None:
    found = getattr(bounds, name)(Reals(min(a, b), max(a, b), False))
    with np.errstate(all="ignore"):
        for x in (a, b, np.float32(a) / 2 + np.float32(b) / 2):
            if min(a, b) <= x <= max(a, b):
                assert _holds(found, float(_REAL_ONE[name](np.float32(x)))), (name, x)


def test_a_comparison_with_nan_is_false() -> None:
    one, unknown = Reals(1.0, 1.0, False), bounds.unknown_real()
    assert bounds.less(one, Reals(2.0, 2.0, True)) is Tri.SOME
    assert bounds.less(Reals(3.0, 3.0, True), one) is Tri.NONE
    assert bounds.equal(unknown, one) is Tri.SOME
    assert bounds.equal(one, one) is Tri.ALL


@given(
    spans(),
    spans(),
    st.none() | spans(12),
    st.none() | spans(12),
    st.lists(st.tuples(*[st.integers(-3, 3)] * 2, st.integers(-12, 12)), max_size=3),
)
def test_pairs_left_by_linear_conditions_are_exact(
    q: Span, kv: Span, difference: Span | None, total: Span | None, planes: list[tuple[int, int, int]]
) -> None:
    whole = Span(-FAR, FAR)
    left = Pairs(q, kv, difference or whole, total or whole).narrow([HalfPlane(*plane) for plane in planes])
    pairs = [
        (x, y)
        for x in inside(q)
        for y in inside(kv)
        if (difference is None or difference.lo <= x - y <= difference.hi)
        and (total is None or total.lo <= x + y <= total.hi)
        and all(of_q * x + of_kv * y + constant >= 0 for of_q, of_kv, constant in planes)
    ]
    if not pairs:
        assert left is None
        return
    assert left is not None
    rows, keys = zip(*pairs, strict=True)
    assert left.q == Span(min(rows), max(rows))
    assert left.kv == Span(min(keys), max(keys))


@given(st.lists(st.integers(-9, 40), min_size=1, max_size=30), st.lists(st.integers(-9, 40), min_size=1), spans(40))
def test_shared_values(a: list[int], b: list[int], allowed: Span) -> None:
    common = {x for x in set(a) & set(b) if allowed.lo <= x <= allowed.hi}
    found = may_share(Values.of(a), Values.of(b), allowed)
    assert found or not common
    if min(len(set(a)), len(set(b))) < 16:  # a turn passes one of each
        assert found == bool(common)


_RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=20)


def _covered(ranges: Ranges) -> set[int]:
    assert len(ranges.ranges) <= CAPACITY
    assert all(first < last for first, last in ranges.ranges)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges.ranges))
    return {index for first, last in ranges.ranges for index in range(first, last)}


def _united(parts: list[tuple[int, int]]) -> Ranges:
    found = Ranges()
    for first, length in parts:
        found = unite(found, Ranges.between(first, first + length))
    return found


@given(_RANGES, _RANGES)
def test_ranges_cover_at_least_what_they_should(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    sets = [{index for first, length in parts for index in range(first, first + length)} for parts in (a, b)]
    one, other = _united(a), _united(b)
    assert _covered(one) >= sets[0]
    assert _covered(unite(one, other)) >= sets[0] | sets[1]
    assert _covered(intersect(one, other)) >= sets[0] & sets[1]
    if len(a) <= CAPACITY and len(b) <= CAPACITY and len(a) + len(b) <= CAPACITY:
        assert _covered(unite(one, other)) == sets[0] | sets[1]
        assert _covered(intersect(one, other)) == sets[0] & sets[1]


def test_when_there_are_too_many_ranges_the_closest_two_become_one() -> None:
    firsts = [0, 10, 20, 30, 33, 50, 60, 70, 80]
    ranges = _united([(first, 2) for first in firsts])
    assert (30, 35) in ranges.ranges and len(ranges.ranges) == CAPACITY
