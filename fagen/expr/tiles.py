"""How a tile is tested: is there a pair in it that a condition can hold for?

A mask admits no pair of a tile if its condition cannot hold there, and every pair if the opposite cannot. The
condition is written as "one of these conjunctions"; in each, the linear conditions are tested together and exactly,
and shrink the tile for the others, which are tested one by one with intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from .conditions import All, Any, Condition, Equal, Linear, Literal, Ordered, alternatives
from .graph import Graph, Node

# More conjunctions than this are not written out: the parts of the condition are then tested apart.
_MOST_CONJUNCTIONS = 64


@dataclass(frozen=True)
class Conjunction:
    """All of these hold for one pair."""

    linear: tuple[Linear, ...]
    others: tuple[Literal, ...]


@dataclass(frozen=True)
class OneOf:
    """At least one part is possible; of no parts: not possible."""

    parts: tuple[Possible, ...]


@dataclass(frozen=True)
class EachOf:
    """Each part is possible, though perhaps for different pairs."""

    parts: tuple[Possible, ...]


Possible: TypeAlias = Conjunction | OneOf | EachOf


def possible(condition: Condition) -> Possible:
    """The test of whether a condition can hold for a pair of a tile."""
    conjunctions = alternatives(condition, _MOST_CONJUNCTIONS)
    if conjunctions is not None:
        parts = tuple(_conjunction(literals) for literals in conjunctions)
        return parts[0] if len(parts) == 1 else OneOf(parts)
    assert isinstance(condition, (All, Any))
    parts_of = tuple(possible(part) for part in condition.parts)
    return EachOf(parts_of) if isinstance(condition, All) else OneOf(parts_of)


def _conjunction(literals: tuple[Literal, ...]) -> Conjunction:
    return Conjunction(
        tuple(literal for literal in literals if isinstance(literal, Linear)),
        tuple(literal for literal in literals if not isinstance(literal, Linear)),
    )


@dataclass(frozen=True)
class Shared:
    """Two reads that must give the same integer, at least each of ``least`` and at most each of ``most``.

    What a tile's rows and keys read is compared integer by integer: hulls alone would visit tiles in vain where ids
    do not grow, as where padding ends a batch of documents.
    """

    left: Node
    right: Node
    least: tuple[Node, ...]
    most: tuple[Node, ...]


def shared(equal: Equal, others: tuple[Literal, ...], exact: Callable[[Node], bool]) -> Shared | None:
    """The sharper test of an equality among the conditions of a conjunction; None if it is not of two reads."""
    reads = (equal.left, equal.right)
    if not equal.wanted or any(side.op != "read" or exact(side) for side in reads):
        return None
    ordered = [other for other in others if isinstance(other, Ordered)]
    return Shared(
        equal.left,
        equal.right,
        tuple(other.low for other in ordered if other.high in reads and exact(other.low)),
        tuple(other.high for other in ordered if other.low in reads and exact(other.high)),
    )


@dataclass(frozen=True)
class Strip:
    """``of`` (q, kv, difference: q - kv, or sum: q + kv) is at least, or at most, ``bound``."""

    of: str
    at_least: bool
    bound: Node


def strip(graph: Graph, linear: Linear) -> Strip | None:
    """A linear condition as a bound of q, kv, their difference or their sum; None if it is of none of these alone."""
    of_q, of_kv = linear.of_q, linear.of_kv
    if of_q == 0 or of_kv == 0:
        of, factor = ("q", of_q) if of_kv == 0 else ("kv", of_kv)
    elif of_q == -of_kv:
        of, factor = "difference", of_q
    elif of_q == of_kv:
        of, factor = "sum", of_q
    else:
        return None
    # factor · x + rest >= 0
    if factor == 1:
        return Strip(of, True, linear.rest.times(-1).node(graph))
    rest = graph.arithmetic("floordiv", linear.rest.node(graph), graph.integer(abs(factor)))
    return Strip(of, factor > 0, graph.neg(rest) if factor > 0 else rest)
