"""A mask as and/or of conditions on the pair (q, kv), each of a kind that a tile can be tested for.

Comparisons of integers become ``sum >= 0``; abs, min, max and ``a if c else b`` in a sum are split into the cases
they stand for, and ``x // c`` is solved for x, so that as many conditions as possible are linear in q and kv: those
are tested exactly. What is left is tested by intervals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .affine import Sum, as_sum
from .graph import Graph, Node, below
from .sizes import INT64, Sizes

# Splitting abs, min, max and conditionals stops at so many conditions from one mask.
_MOST_CASES = 256
# Numbers in linear conditions stay below this, so that sums and products of a few of them fit 64 bits.
_MOST = 2**59


@dataclass(frozen=True)
class Linear:
    """``of_q · q + of_kv · kv + rest >= 0``; ``rest`` is one number for a tile."""

    of_q: int
    of_kv: int
    rest: Sum


@dataclass(frozen=True)
class Ordered:
    """``low <= high``, integers of the pair."""

    low: Node
    high: Node


@dataclass(frozen=True)
class Equal:
    """``left == right`` (or, not ``wanted``, ``!=``), integers of the pair."""

    left: Node
    right: Node
    wanted: bool


@dataclass(frozen=True)
class Truth:
    """``node`` is ``wanted``: any other condition."""

    node: Node
    wanted: bool


@dataclass(frozen=True)
class All:
    """Every part holds; of no parts: true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Any:
    """Some part holds; of no parts: false."""

    parts: tuple[Condition, ...]


Literal: TypeAlias = Linear | Ordered | Equal | Truth
Condition: TypeAlias = Literal | All | Any


def all_of(*parts: Condition) -> Condition:
    """The conjunction, flattened."""
    flat: dict[Condition, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, All) else (part,)))
    if Any(()) in flat:
        return Any(())
    return next(iter(flat)) if len(flat) == 1 else All(tuple(flat))


def any_of(*parts: Condition) -> Condition:
    """The disjunction, flattened."""
    flat: dict[Condition, None] = {}
    for part in parts:
        flat.update(dict.fromkeys(part.parts if isinstance(part, Any) else (part,)))
    if All(()) in flat:
        return All(())
    return next(iter(flat)) if len(flat) == 1 else Any(tuple(flat))


class Analyst:
    """Turns truth-valued nodes into conditions.

    ``graph`` is the one the nodes are of; their names i and j must have been replaced by positions.
    """

    def __init__(self, graph: Graph, sizes: Sizes):
        self._graph = graph
        self._sizes = sizes
        self._q = graph.name("q")
        self._kv = graph.name("kv")
        self._moving: dict[Node, bool] = {}
        self._cases = 0

    def moves(self, node: Node) -> bool:
        """Whether a node depends on q or kv."""
        if node not in self._moving:
            for part in below((node,)):
                own = part is self._q or part is self._kv
                self._moving[part] = own or any(self._moving[arg] for arg in part.args)
        return self._moving[node]

    def condition(self, node: Node, wanted: bool = True) -> Condition:
        """``node`` is ``wanted``."""
        op = node.op
        if op == "const":
            return All(()) if node.value == wanted else Any(())
        if op == "not":
            return self.condition(node.args[0], not wanted)
        if op in ("and", "or"):
            parts = [self.condition(arg, wanted) for arg in node.args]
            return all_of(*parts) if (op == "and") == wanted else any_of(*parts)
        if op == "select":
            test, yes, no = node.args
            return any_of(
                all_of(self.condition(test), self.condition(yes, wanted)),
                all_of(self.condition(test, False), self.condition(no, wanted)),
            )
        if op == "eq" and node.args[0].type == "bool":
            a, b = node.args
            return any_of(
                all_of(self.condition(a), self.condition(b, wanted)),
                all_of(self.condition(a, False), self.condition(b, not wanted)),
            )
        if op in ("lt", "le", "eq") and node.args[0].type == "int" and self.moves(node) and self._exact(node):
            return self._comparison(node, wanted)
        return Truth(node, wanted)

    def _exact(self, node: Node) -> bool:
        """Whether no integer below can pass 64 bits, so that integers here are those of arithmetic."""
        return all(self._sizes.fits(part, INT64) for part in below(node.args) if part.type == "int")

    def _comparison(self, node: Node, wanted: bool) -> Condition:
        a, b = (as_sum(arg) for arg in node.args)
        if node.op == "eq":
            return self._equality(b.plus(a, -1), wanted)
        if wanted:  # a <= b, a < b
            return self._at_least_zero(b.plus(a, -1).shifted(0 if node.op == "le" else -1))
        return self._at_least_zero(a.plus(b, -1).shifted(-1 if node.op == "le" else 0))

    def _equality(self, total: Sum, wanted: bool) -> Condition:
        if wanted:
            linear = all_of(self._at_least_zero(total), self._at_least_zero(total.times(-1)))
        else:
            linear = any_of(self._at_least_zero(total.shifted(-1)), self._at_least_zero(total.times(-1).shifted(-1)))
        if all(isinstance(part, (Linear, Truth)) for part in _literals(linear)):
            return linear
        left, right = self._sides(total)
        return Equal(left, right, wanted)

    def _at_least_zero(self, total: Sum) -> Condition:
        self._cases += 1
        cases = self._cases_of(total) if self._cases < _MOST_CASES else None
        if cases is not None:
            return cases
        moving, rest = total.split(self.moves)
        rest = self._tamed(rest)
        divided = self._undivided(moving, rest)
        if divided is not None:
            moving, rest = divided.split(self.moves)
        of_q, of_kv = moving.coefficient(self._q), moving.coefficient(self._kv)
        if moving.without(self._q, self._kv).terms or not self._near(moving, rest):
            return self._ordered(total)
        if not moving.terms:
            return Truth(self._graph.compare("le", self._graph.integer(0), rest.node(self._graph)), True)
        return Linear(of_q, of_kv, rest)

    def _near(self, moving: Sum, rest: Sum) -> bool:
        """Whether 64 bits hold what is done with a linear condition."""
        reach = abs(rest.constant)
        for atom, factor in (*moving.terms, *rest.terms):
            lo, hi = self._sizes.range(atom)
            reach += abs(factor) * max(abs(lo), abs(hi))
        return reach < _MOST

    def _tamed(self, rest: Sum) -> Sum:
        """With a 64-bit number kept within what linear conditions can hold: beyond it no position comes near."""
        wide = [(atom, factor) for atom, factor in rest.terms if not self._sizes.fits(atom, (-_MOST // 2, _MOST // 2))]
        if len(wide) != 1 or abs(wide[0][1]) != 1:
            return rest
        graph, (atom, factor) = self._graph, wide[0]
        low = graph.arithmetic("max", atom, graph.integer(-_MOST // 2))
        return rest.without(atom).plus(as_sum(graph.arithmetic("min", low, graph.integer(_MOST // 2))), factor)

    def _ordered(self, total: Sum) -> Condition:
        low, high = self._sides(total)
        return Ordered(low, high)

    def _sides(self, total: Sum) -> tuple[Node, Node]:
        """``total`` as high - low, both sums of positive terms."""
        above = Sum(tuple((atom, factor) for atom, factor in total.terms if factor > 0), max(total.constant, 0))
        under = Sum(tuple((atom, -factor) for atom, factor in total.terms if factor < 0), max(-total.constant, 0))
        return under.node(self._graph), above.node(self._graph)

    def _cases_of(self, total: Sum) -> Condition | None:
        """``total >= 0`` split by its first abs, min, max or conditional that moves, if it has one."""
        for atom, factor in total.terms:
            if not self.moves(atom) or atom.op not in ("abs", "min", "max", "select"):
                continue
            rest = total.without(atom)
            if atom.op == "abs":
                inside = as_sum(atom.args[0])
                options = [inside, inside.times(-1)]
            else:
                options = [as_sum(arg) for arg in atom.args[-2:]]
            parts = [self._at_least_zero(rest.plus(option, factor)) for option in options]
            if atom.op == "select":
                test = atom.args[0]
                return any_of(all_of(self.condition(test), parts[0]), all_of(self.condition(test, False), parts[1]))
            # The largest of the options at least something: one of them is. abs is the larger of x and -x.
            largest = (atom.op == "min") == (factor < 0)
            return any_of(*parts) if largest else all_of(*parts)
        return None

    def _undivided(self, moving: Sum, rest: Sum) -> Sum | None:
        """``moving + rest >= 0`` without its one ``x // c``: x // c >= y is x >= c y, x // c <= y is x < c (y + 1)."""
        quotients = [(atom, factor) for atom, factor in moving.terms if atom.op == "floordiv"]
        if len(quotients) != 1 or abs(quotients[0][1]) != 1:
            return None
        ((quotient, factor),) = quotients
        divisor = quotient.args[1]
        if not divisor.is_const or not 0 < divisor.integer < 2**30:
            return None
        c = divisor.integer
        others = moving.without(quotient).plus(rest)
        inside = as_sum(quotient.args[0])
        if factor == 1:
            return inside.plus(others, c)
        return others.times(c).plus(inside, -1).shifted(c - 1)


def nodes_of(literal: Ordered | Equal | Truth) -> tuple[Node, ...]:
    """What a condition that is not linear compares, or is."""
    if isinstance(literal, Ordered):
        return literal.low, literal.high
    return (literal.left, literal.right) if isinstance(literal, Equal) else (literal.node,)


def keeps_to_the_past(condition: Condition) -> bool:
    """Whether a condition holds for no key after the query, kv > q, whatever else it asks."""
    if isinstance(condition, Any):
        return all(keeps_to_the_past(part) for part in condition.parts)
    if isinstance(condition, All):
        return any(keeps_to_the_past(part) for part in condition.parts)
    if not isinstance(condition, Linear):
        return False
    return (condition.of_q, condition.of_kv) == (1, -1) and not condition.rest.terms and condition.rest.constant <= 0


def _literals(condition: Condition) -> list[Literal]:
    if isinstance(condition, (All, Any)):
        return [literal for part in condition.parts for literal in _literals(part)]
    return [condition]


def alternatives(condition: Condition, most: int) -> list[tuple[Literal, ...]] | None:
    """The condition as "one of these conjunctions holds"; None where there would be more than ``most``."""
    if isinstance(condition, Any):
        found: list[tuple[Literal, ...]] = []
        for part in condition.parts:
            more = alternatives(part, most)
            if more is None or len(found) + len(more) > most:
                return None
            found += more
        return found
    if isinstance(condition, All):
        product: list[tuple[Literal, ...]] = [()]
        for part in condition.parts:
            more = alternatives(part, most)
            if more is None or len(product) * len(more) > most:
                return None
            product = [(*one, *(x for x in other if x not in one)) for one in product for other in more]
        return product
    return [(condition,)]
