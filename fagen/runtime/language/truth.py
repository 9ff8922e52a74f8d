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
    flat: list[Truth] = []
    for part in parts:
        flat.extend(part.parts if isinstance(part, All) else [part])
    members: dict[Node, Set] = {}
    others: dict[Truth, None] = {}
    for part in flat:
        if isinstance(part, Member):
            values = intersection(members.get(part.polynomial, EVERYTHING), part.values)
            if values == NOTHING:
                return NEVER
            members[part.polynomial] = values
        elif part == NEVER or negation(part) in others:
            return NEVER
        else:
            others[part] = None
    facts = [Member(polynomial, values) for polynomial, values in members.items() if values != EVERYTHING]
    # A disjunction that one of the facts already makes true adds nothing.
    kept = [o for o in others if not (isinstance(o, Any) and any(_follows(p, o, facts, others) for p in o.parts))]
    return _single(All, [*facts, *kept])


def disjunction(parts: Iterable[Truth]) -> Truth:
    """One of ``parts`` at least."""
    return negation(conjunction([negation(part) for part in parts]))


def _follows(part: Truth, whole: Truth, facts: list[Member], others: Iterable[Truth]) -> bool:
    if isinstance(part, Member):
        return any(f.polynomial == part.polynomial and contains(part.values, f.values) for f in facts)
    return any(part == other for other in others if other is not whole)


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
    if values[0][0] is None and values[-1][1] is None:  # all but some gaps
        outside: list[Node] = []
        for low, high in complement(values):
            assert low is not None and high is not None
            if low == high:
                outside.append(Compare("!=", polynomial, Number(low)))
            else:
                below, above = Compare("<=", polynomial, Number(low - 1)), Compare(">=", polynomial, Number(high + 1))
                outside.append(logic("or", [below, above]))
        return logic("and", outside)
    inside: list[Node] = []
    for low, high in values:
        if low is not None and low == high:
            inside.append(Compare("==", polynomial, Number(low)))
        else:
            ends: list[Node] = []
            if low is not None:
                ends.append(Compare(">=", polynomial, Number(low)))
            if high is not None:
                ends.append(Compare("<=", polynomial, Number(high)))
            inside.append(logic("and", ends))
    return logic("or", inside)
