"""Truth values in a normal form: conjunctions and disjunctions of facts, with no negation above a fact.

A fact is either that a polynomial of integers lies in a set of integers, or a text of its own (a param that is a
truth value, a comparison of real numbers) that holds or does not. Facts about one polynomial are merged: in a
conjunction its sets are intersected, in a disjunction united.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .construct import logic
from .integers import EVERYTHING, NOTHING, Set, complement, contains, intersection
from .nodes import FALSE, TRUE, Compare, Node, Not, Number
from .unparse import unparse


@dataclass(frozen=True)
class Member:
    """``polynomial``, a tree whose leading coefficient is positive and that has no constant term, is in ``values``."""

    polynomial: Node
    values: Set


@dataclass(frozen=True)
class Fact:
    """``tree`` holds, or (``holds`` False) does not."""

    tree: Node
    holds: bool = True


@dataclass(frozen=True)
class All:
    """A conjunction; of nothing it is true."""

    parts: tuple[Truth, ...]


@dataclass(frozen=True)
class Any:
    """A disjunction; of nothing it is false."""

    parts: tuple[Truth, ...]


Truth = Member | Fact | All | Any

ALWAYS: Truth = All(())
NEVER: Truth = Any(())


def negation(truth: Truth) -> Truth:
    """not truth."""
    match truth:
        case Member(polynomial=polynomial, values=values):
            return Member(polynomial, complement(values))
        case Fact(tree=tree, holds=holds):
            return Fact(tree, not holds)
        case All(parts=parts):
            return Any(tuple(map(negation, parts)))
        case Any(parts=parts):
            return All(tuple(map(negation, parts)))


def conjunction(parts: Iterable[Truth]) -> Truth:
    """All of ``parts``."""
    pending = list(parts)
    while True:
        members: dict[Node, Set] = {}
        others: dict[Truth, None] = {}
        for part in pending:
            for one in part.parts if isinstance(part, All) else (part,):
                if isinstance(one, Member):
                    members[one.polynomial] = intersection(members.get(one.polynomial, EVERYTHING), one.values)
                else:
                    others[one] = None
        if NEVER in others or NOTHING in members.values() or any(negation(other) in others for other in others):
            return NEVER
        facts = [Member(polynomial, values) for polynomial, values in members.items() if values != EVERYTHING]
        # A disjunction loses the parts that the rest excludes; what is left may be a fact that says more.
        pending = [*facts, *(_remaining(other, members, others) for other in others)]
        if pending == [*facts, *others]:
            break
    kept = [o for o in others if not (isinstance(o, Any) and any(_follows(part, members, others) for part in o.parts))]
    return _single(All, [*facts, *kept])


def _remaining(truth: Truth, members: dict[Node, Set], others: dict[Truth, None]) -> Truth:
    if not isinstance(truth, Any):
        return truth
    kept = [part for part in truth.parts if not _excluded(part, members, others)]
    return truth if len(kept) == len(truth.parts) else disjunction(kept)


def _excluded(part: Truth, members: dict[Node, Set], others: dict[Truth, None]) -> bool:
    if isinstance(part, Member):
        return intersection(members.get(part.polynomial, EVERYTHING), part.values) == NOTHING
    if isinstance(part, All):
        return any(_excluded(one, members, others) for one in part.parts)
    return negation(part) in others


def _follows(part: Truth, members: dict[Node, Set], others: dict[Truth, None]) -> bool:
    if isinstance(part, Member):
        return contains(part.values, members.get(part.polynomial, EVERYTHING))
    if isinstance(part, All):
        return all(_follows(one, members, others) for one in part.parts)
    return part in others


def disjunction(parts: Iterable[Truth]) -> Truth:
    """One of ``parts`` at least."""
    return negation(conjunction([negation(part) for part in parts]))


def _single(kind: type, parts: list[Truth]) -> Truth:
    if len(parts) == 1:
        return parts[0]
    result: Truth = kind(tuple(sorted(parts, key=lambda part: unparse(tree(part)))))
    return result


def tree(truth: Truth) -> Node:
    """The expression that says it."""
    match truth:
        case Member(polynomial=polynomial, values=values):
            return _membership(polynomial, values)
        case Fact(tree=node, holds=holds):
            return node if holds else Not(node)
        case All(parts=parts):
            return logic("and", [tree(part) for part in parts]) if parts else TRUE
        case Any(parts=parts):
            return logic("or", [tree(part) for part in parts]) if parts else FALSE


def _membership(polynomial: Node, values: Set) -> Node:
    outside = complement(values)
    if all(low is not None and low == high for low, high in outside):
        return logic("and", [Compare("!=", polynomial, Number(low)) for low, _ in outside if low is not None])
    return logic("or", [_between(polynomial, low, high) for low, high in values])


def _between(polynomial: Node, low: int | None, high: int | None) -> Node:
    if low is not None and low == high:
        return Compare("==", polynomial, Number(low))
    ends: list[Node] = []
    if low is not None:
        ends.append(Compare(">=", polynomial, Number(low)))
    if high is not None:
        ends.append(Compare("<=", polynomial, Number(high)))
    return logic("and", ends)
