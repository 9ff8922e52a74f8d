"""Sets of integers that are a finite union of intervals, and polynomials with integer coefficients."""

from __future__ import annotations

import math

# An interval with both ends in it; None is no end. A set is a tuple of them, ascending, with gaps in between.
Interval = tuple[int | None, int | None]
Set = tuple[Interval, ...]

EVERYTHING: Set = ((None, None),)
NOTHING: Set = ()


def complement(a: Set) -> Set:
    """The integers that are not in a set."""
    gaps: list[Interval] = []
    start: int | None = None
    for k, (low, high) in enumerate(a):
        if low is not None:
            gaps.append((start, low - 1))
        elif k:
            raise ValueError("a set is ascending")
        if high is None:
            return tuple(gaps)
        start = high + 1
    return (*gaps, (start, None)) if a else EVERYTHING


def intersection(a: Set, b: Set) -> Set:
    """The integers in both sets."""
    found: list[Interval] = []
    for low_a, high_a in a:
        for low_b, high_b in b:
            low = max((x for x in (low_a, low_b) if x is not None), default=None)
            high = min((x for x in (high_a, high_b) if x is not None), default=None)
            if low is None or high is None or low <= high:
                found.append((low, high))
    return tuple(found)


def contains(a: Set, b: Set) -> bool:
    """Whether all of b is in a."""
    return intersection(a, b) == b


# A polynomial maps monomials to coefficients other than 0; a monomial is the sorted texts of its factors, () is 1.
Monomial = tuple[str, ...]
Polynomial = dict[Monomial, int]

_LARGEST = 2**62
_MOST_TERMS = 32


class TooLarge(ArithmeticError):
    """A polynomial with too many terms, or a coefficient that might not fit in 64 bits."""


def constant(value: int) -> Polynomial:
    """A polynomial of degree 0."""
    return {(): value} if value else {}


def add(a: Polynomial, b: Polynomial, factor: int = 1) -> Polynomial:
    """a + factor * b."""
    result = dict(a)
    for monomial, coefficient in b.items():
        result[monomial] = result.get(monomial, 0) + factor * coefficient
    return _checked(result)


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """a * b."""
    if len(a) * len(b) > 8 * _MOST_TERMS:
        raise TooLarge
    result: Polynomial = {}
    for left, x in a.items():
        for right, y in b.items():
            monomial = tuple(sorted(left + right))
            result[monomial] = result.get(monomial, 0) + x * y
    return _checked(result)


def _checked(a: Polynomial) -> Polynomial:
    a = {monomial: coefficient for monomial, coefficient in a.items() if coefficient}
    if len(a) > _MOST_TERMS or any(abs(coefficient) > _LARGEST for coefficient in a.values()):
        raise TooLarge
    return a


def split_constant(a: Polynomial) -> tuple[Polynomial, int]:
    """The terms with a factor, and the constant term."""
    return {monomial: coefficient for monomial, coefficient in a.items() if monomial}, a.get((), 0)


def leading(a: Polynomial) -> int:
    """The coefficient written first; its sign is the one that counts as the polynomial's."""
    return a[order(a)[0]]


def order(a: Polynomial) -> list[Monomial]:
    """The monomials in the order they are written: the constant last."""
    return sorted(a, key=lambda monomial: (not monomial, monomial))


def primitive(a: Polynomial) -> tuple[Polynomial, int]:
    """a divided by the greatest common divisor of its coefficients, signed so that the leading one is positive;
    and that divisor."""
    divisor = math.gcd(*a.values()) * (1 if leading(a) > 0 else -1)
    return {monomial: coefficient // divisor for monomial, coefficient in a.items()}, divisor
