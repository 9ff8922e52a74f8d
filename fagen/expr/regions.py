"""Sets of integers, the pairs of a tile that linear conditions leave, lists of index ranges: the rest of bounds.h."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .bounds import FAR, Span, join, point

_TURNS = 16  # in which integers of two parts are compared


@dataclass(frozen=True)
class Values:
    """The integers that a part of an array holds: in ``listed``, sorted, or, where they are too many, any of a span."""

    listed: tuple[int, ...] | Span

    @classmethod
    def of(cls, values: Iterable[int]) -> Values:
        return cls(tuple(sorted(values)))

    def next(self, x: int) -> int | None:
        """The least of them that is at least ``x``."""
        if isinstance(self.listed, Span):
            found = max(x, self.listed.lo)
            return found if found <= self.listed.hi else None
        at = bisect_left(self.listed, x)
        return self.listed[at] if at < len(self.listed) else None


def may_share(a: Values, b: Values, allowed: Span) -> bool:
    """Whether one integer may be in both, and within ``allowed``. In turns that finds whatever they share; after many
    they may."""
    x = allowed.lo
    for _ in range(_TURNS):
        in_a = a.next(x)
        if in_a is None or in_a > allowed.hi:
            return False
        in_b = b.next(in_a)
        if in_b is None or in_b > allowed.hi:
            return False
        if in_a == in_b:
            return True
        x = in_b
    return True


@dataclass(frozen=True)
class HalfPlane:
    """of_q · q + of_kv · kv + constant >= 0"""

    of_q: int
    of_kv: int
    constant: int


@dataclass(frozen=True)
class Pairs:
    """The tile, and what is known of q - kv and q + kv."""

    q: Span
    kv: Span
    difference: Span = Span(-FAR, FAR)
    sum: Span = Span(-FAR, FAR)

    def narrow(self, planes: Sequence[HalfPlane] = ()) -> Pairs | None:
        """The tile shrunk around the pairs that are left; None if there is none. Exact: for pairs of integers."""
        q, kv, difference, total = self.q, self.kv, self.difference, self.sum
        rows = Span(
            max(q.lo, kv.lo + difference.lo, total.lo - kv.hi), min(q.hi, kv.hi + difference.hi, total.hi - kv.lo)
        )
        keys = Span(
            max(kv.lo, q.lo - difference.hi, total.lo - q.hi), min(kv.hi, q.hi - difference.lo, total.hi - q.lo)
        )
        if any(span.empty for span in (q, kv, difference, total, rows, keys)):
            return None
        everything = Span(-FAR, FAR)
        if not planes and (difference == everything or total == everything):
            return Pairs(rows, keys, difference, total)
        q_left, kv_left = Span(FAR, -FAR), Span(FAR, -FAR)
        for row in range(rows.lo, rows.hi + 1):
            left = Span(
                max(keys.lo, row - difference.hi, total.lo - row), min(keys.hi, row - difference.lo, total.hi - row)
            )
            for plane in planes:
                rest = plane.of_q * row + plane.constant
                if plane.of_kv > 0:
                    left = left.at_least(-(rest // plane.of_kv))
                elif plane.of_kv < 0:
                    left = left.at_most(rest // -plane.of_kv)
                elif rest < 0:
                    left = Span(FAR, -FAR)
            if not left.empty:
                q_left, kv_left = join(q_left, point(row)), join(kv_left, left)
        return None if q_left.empty else Pairs(q_left, kv_left, difference, total)


# More ranges than this are not kept apart: the closest two become one.
CAPACITY = 8


@dataclass(frozen=True)
class Ranges:
    """``ranges`` are (first, last), last not in it."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def between(cls, first: int, last: int) -> Ranges:
        return cls(((first, last),) if first < last else ())

    def appended(self, first: int, last: int) -> Ranges:
        """With a range that starts no earlier than those already here."""
        ranges = list(self.ranges)
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
            return Ranges(tuple(ranges))
        ranges.append((first, last))
        if len(ranges) > CAPACITY:
            gaps = [after[0] - before[1] for before, after in zip(ranges, ranges[1:], strict=False)]
            n = gaps.index(min(gaps))
            ranges[n : n + 2] = [(ranges[n][0], ranges[n + 1][1])]
        return Ranges(tuple(ranges))

    def shifted(self, by: int) -> Ranges:
        return Ranges(tuple((first + by, last + by) for first, last in self.ranges))


def unite(a: Ranges, b: Ranges) -> Ranges:
    both = Ranges()
    for first, last in sorted((*a.ranges, *b.ranges)):
        both = both.appended(first, last)
    return both


def intersect(a: Ranges, b: Ranges) -> Ranges:
    both = Ranges()
    for x, y in sorted(
        (max(x[0], y[0]), min(x[1], y[1])) for x in a.ranges for y in b.ranges if max(x[0], y[0]) < min(x[1], y[1])
    ):
        both = both.appended(x, y)
    return both
