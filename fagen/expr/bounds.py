"""What is true of a whole tile: templates/include/fagen/bounds.h, step for step, in Python.

`fagen explain` and the tests evaluate masks over tiles with it; a kernel does the same with the header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

FAR = 1 << 60  # beyond every position
LARGEST_FLOAT = 3.4028234663852886e38

_Number = TypeVar("_Number", int, float)


class Tri(Enum):
    """Of the pairs of a tile: none, all, or it is not known (some)."""

    NONE = "none"
    ALL = "all"
    SOME = "some"

    def __invert__(self) -> Tri:
        return decide(self is Tri.ALL, self is Tri.NONE)

    def __and__(self, other: Tri) -> Tri:
        return decide(Tri.NONE in (self, other), self is Tri.ALL and other is Tri.ALL)

    def __or__(self, other: Tri) -> Tri:
        return ~(~self & ~other)


def tri(condition: bool) -> Tri:
    """A condition that does not depend on the pair."""
    return Tri.ALL if condition else Tri.NONE


def decide(none: bool, everything: bool) -> Tri:
    """From what is known: that no pair, or every pair."""
    return Tri.NONE if none else Tri.ALL if everything else Tri.SOME


@dataclass(frozen=True)
class Span:
    """Integers from lo to hi, both included; nothing where lo > hi."""

    lo: int
    hi: int

    @property
    def empty(self) -> bool:
        return self.lo > self.hi

    def at_least(self, x: int) -> Span:
        return Span(max(self.lo, x), self.hi)

    def at_most(self, x: int) -> Span:
        return Span(self.lo, min(self.hi, x))

    def __add__(self, other: Span) -> Span:
        return Span(self.lo + other.lo, self.hi + other.hi)

    def __sub__(self, other: Span) -> Span:
        return Span(self.lo - other.hi, self.hi - other.lo)

    def __neg__(self) -> Span:
        return Span(-self.hi, -self.lo)

    def __mul__(self, other: Span) -> Span:
        return Span(*_ends(a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi)))


def point(value: int) -> Span:
    """One integer."""
    return Span(value, value)


@dataclass(frozen=True)
class Reals:
    """What float32 arithmetic can give, rounded outward; ``nan`` where NaN is among it."""

    lo: float
    hi: float
    nan: bool

    @property
    def holds_zero(self) -> bool:
        return self.lo <= 0 <= self.hi

    @property
    def holds_infinity(self) -> bool:
        return self.lo == -math.inf or self.hi == math.inf

    def __neg__(self) -> Reals:
        return Reals(-self.hi, -self.lo, self.nan)

    def __add__(self, other: Reals) -> Reals:
        if (self.hi == math.inf and other.lo == -math.inf) or (self.lo == -math.inf and other.hi == math.inf):
            return unknown_real()
        return rounded(self.lo + other.lo, self.hi + other.hi, self.nan or other.nan)

    def __sub__(self, other: Reals) -> Reals:
        return self + -other

    def __mul__(self, other: Reals) -> Reals:
        if (self.holds_zero and other.holds_infinity) or (self.holds_infinity and other.holds_zero):
            return unknown_real()
        ends = _ends(a * b for a in (self.lo, self.hi) for b in (other.lo, other.hi))
        return rounded(*ends, self.nan or other.nan)

    def __truediv__(self, other: Reals) -> Reals:
        if other.holds_zero or (self.holds_infinity and other.holds_infinity):
            return unknown_real()
        ends = _ends(a / b for a in (self.lo, self.hi) for b in (other.lo, other.hi))
        return rounded(*ends, self.nan or other.nan)


def _ends(values: Iterable[_Number]) -> tuple[_Number, _Number]:
    found = list(values)
    return min(found), max(found)


def rounded(lo: float, hi: float, nan: bool) -> Reals:
    """A result of float32 arithmetic, whatever its rounding and a function's last bits."""
    if math.isnan(lo) or math.isnan(hi):
        return unknown_real()
    lo = min(lo, LARGEST_FLOAT)
    hi = max(hi, -LARGEST_FLOAT)
    lo -= abs(lo) * 2.0**-21 + 2.0**-148
    hi += abs(hi) * 2.0**-21 + 2.0**-148
    return Reals(-math.inf if lo < -LARGEST_FLOAT else lo, math.inf if hi > LARGEST_FLOAT else hi, nan)


def unknown_real() -> Reals:
    return Reals(-math.inf, math.inf, True)


def reals(x: float | Span) -> Reals:
    if isinstance(x, Span):
        return rounded(float(x.lo), float(x.hi), False)
    return Reals(x, x, False)


# ---- operations on both kinds of interval ----

_Interval = TypeVar("_Interval", Span, Reals)


def join(a: _Interval, b: _Interval) -> _Interval:
    if isinstance(a, Span):
        return Span(min(a.lo, b.lo), max(a.hi, b.hi))
    return Reals(min(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def lesser(a: _Interval, b: _Interval) -> _Interval:
    if isinstance(a, Span):
        return Span(min(a.lo, b.lo), min(a.hi, b.hi))
    return Reals(min(a.lo, b.lo), min(a.hi, b.hi), a.nan or b.nan)


def greater(a: _Interval, b: _Interval) -> _Interval:
    if isinstance(a, Span):
        return Span(max(a.lo, b.lo), max(a.hi, b.hi))
    return Reals(max(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def magnitude(a: _Interval) -> _Interval:
    low, high = (a.lo if a.lo > 0 else -a.hi if a.hi < 0 else 0), max(-a.lo, a.hi)
    return Span(low, high) if isinstance(a, Span) else Reals(low, high, a.nan)


def square(a: _Interval) -> _Interval:
    size = magnitude(a)
    if isinstance(size, Span):
        return Span(size.lo * size.lo, size.hi * size.hi)
    return rounded(size.lo * size.lo, size.hi * size.hi, size.nan)


def _quotient_one_sign(a: Span, b: Span) -> Span:
    return Span(*_ends(x // y for x in (a.lo, a.hi) for y in (b.lo, b.hi)))


def quotient(a: _Interval, b: _Interval) -> _Interval:
    if isinstance(a, Reals):
        exact = a / b
        if exact.holds_infinity:
            return unknown_real()
        return rounded(float(math.floor(exact.lo)), float(math.floor(exact.hi)), exact.nan)
    if b.lo > 0 or b.hi < 0:
        return _quotient_one_sign(a, b)
    found = point(0)  # by a divisor of 0
    if b.hi > 0:
        found = join(found, _quotient_one_sign(a, Span(1, b.hi)))
    if b.lo < 0:
        found = join(found, _quotient_one_sign(a, Span(b.lo, -1)))
    return found


def remainder(a: _Interval, b: _Interval) -> _Interval:
    if isinstance(a, Reals):
        if b.holds_zero or a.holds_infinity or b.holds_infinity:
            return unknown_real()
        return Reals(min(b.lo, 0.0), max(b.hi, 0.0), a.nan or b.nan)
    if b.lo == b.hi and b.lo != 0:
        below = a.lo // b.lo
        if below == a.hi // b.lo:
            return Span(a.lo - below * b.lo, a.hi - below * b.lo)
    if a.lo >= 0 and b.lo > 0:
        return Span(0, min(a.hi, b.hi - 1))
    return Span(min(b.lo + 1, 0), max(b.hi - 1, 0))


def choose(condition: Tri, yes: _Interval | Tri, no: _Interval | Tri) -> _Interval | Tri:
    if isinstance(yes, Tri) or isinstance(no, Tri):
        assert isinstance(yes, Tri) and isinstance(no, Tri)
        return (condition & yes) | (~condition & no)
    return yes if condition is Tri.ALL else no if condition is Tri.NONE else join(yes, no)


# ---- comparisons; one with NaN is false ----


def less(a: _Interval, b: _Interval) -> Tri:
    return decide(a.lo >= b.hi, a.hi < b.lo and not _nan(a, b))


def less_equal(a: _Interval, b: _Interval) -> Tri:
    return decide(a.lo > b.hi, a.hi <= b.lo and not _nan(a, b))


def equal(a: _Interval, b: _Interval) -> Tri:
    return decide(a.lo > b.hi or a.hi < b.lo, a.lo == a.hi == b.lo == b.hi and not _nan(a, b))


def _nan(*intervals: Span | Reals) -> bool:
    return any(isinstance(x, Reals) and x.nan for x in intervals)


def same(a: Tri, b: Tri) -> Tri:
    return (a & b) | (~a & ~b)


def is_true(a: Span) -> Tri:
    """Of truth values as 0 and 1."""
    return decide(a.hi == 0, a.lo == 1)


# ---- real functions ----


def _exp(x: float) -> float:
    return math.exp(x) if x < 709.0 else math.inf


def _growing(function: Callable[[float], float]) -> Callable[[Reals], Reals]:
    return lambda a: rounded(function(a.lo), function(a.hi), a.nan)


def _logarithm(function: Callable[[float], float]) -> Callable[[Reals], Reals]:
    def bounded(a: Reals) -> Reals:
        if a.lo <= 0:
            return Reals(-math.inf, -math.inf if a.hi <= 0 else rounded(0, function(a.hi), True).hi, True)
        return rounded(function(a.lo), function(a.hi), a.nan)

    return bounded


exp = _growing(_exp)
exp2 = _growing(lambda x: math.exp2(x) if x < 1023.0 else math.inf)
log = _logarithm(math.log)
log2 = _logarithm(math.log2)
tanh = _growing(math.tanh)
sigmoid = _growing(lambda x: 1 / (1 + _exp(-x)))
softplus = _growing(lambda x: max(x, 0.0) + math.log1p(_exp(-abs(x))))


def sqrt(a: Reals) -> Reals:
    return rounded(math.sqrt(max(a.lo, 0.0)), math.sqrt(max(a.hi, 0.0)), a.nan or a.lo < 0)


def wave(a: Reals) -> Reals:
    """sin or cos."""
    return Reals(-1.0, 1.0, a.nan or a.holds_infinity)


def whole_below(a: Reals) -> Reals:
    lo, hi = (float(math.floor(x)) if math.isfinite(x) else x for x in (a.lo, a.hi))
    return Reals(lo, hi, a.nan)


def power(a: Reals, b: Reals) -> Reals:
    if a.lo <= 0 or a.holds_infinity or b.holds_infinity:
        return unknown_real()
    return rounded(*_ends(_pow(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)), a.nan or b.nan)


def _pow(a: float, b: float) -> float:
    try:
        return math.pow(a, b)
    except OverflowError:
        return math.inf
