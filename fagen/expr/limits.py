"""Which keys a span of query rows can meet at all, and which rows a span of keys: ranges in closed form.

A condition that bounds the key gives a range, from the bound's largest value over the rows; ``and`` intersects
ranges, ``or`` unites them, and a condition that no bound is read from leaves everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from .affine import Sum, as_sum
from .conditions import All, Any, Condition, Equal, Linear, Literal, Ordered, Truth
from .graph import Graph, Node, below
from .sizes import Sizes


@dataclass(frozen=True)
class Bound:
    """``factor`` · x + ``rest`` + ``scale`` · top >= 0, with top the greatest value of ``others`` over the span.

    x is the position that is bounded; ``rest`` is one number for a tile.
    """

    factor: int
    rest: Sum
    scale: int
    others: Sum


@dataclass(frozen=True)
class Between:
    """All of the bounds hold; of no bounds: everything."""

    bounds: tuple[Bound, ...]


@dataclass(frozen=True)
class When:
    """Everything if a condition that x is no part of can hold, else nothing."""

    literal: Literal


@dataclass(frozen=True)
class Both:
    """In every part."""

    parts: tuple[Limit, ...]


@dataclass(frozen=True)
class Either:
    """In some part; of no parts: nothing."""

    parts: tuple[Limit, ...]


Limit: TypeAlias = Between | When | Both | Either

# Numbers in bounds stay below these, so that their sums and products fit 64 bits.
_MOST = 2**34
_FEW = 2**20

EVERYTHING = Between(())
NOTHING = Either(())


class Solver:
    """Reads limits of one position, ``of`` ("q" or "kv"), from conditions over nodes of ``graph``."""

    def __init__(self, graph: Graph, sizes: Sizes, of: str):
        self._sizes = sizes
        self._x = graph.name(of)
        self._span = graph.name("kv" if of == "q" else "q")
        self._depends: dict[Node, bool] = {}

    def _on_x(self, node: Node) -> bool:
        for part in below((node,)) if node not in self._depends else ():
            self._depends[part] = part is self._x or any(self._depends[arg] for arg in part.args)
        return self._depends[node]

    def limit(self, condition: Condition) -> Limit:
        """Where a condition can hold for some position of the span."""
        if isinstance(condition, All):
            parts = [self.limit(part) for part in condition.parts]
            bounds = tuple(bound for part in parts if isinstance(part, Between) for bound in part.bounds)
            others = [part for part in parts if not isinstance(part, Between)]
            if NOTHING in others:
                return NOTHING
            whole = [*([Between(bounds)] if bounds or not others else []), *others]
            return whole[0] if len(whole) == 1 else Both(tuple(whole))
        if isinstance(condition, Any):
            parts = [self.limit(part) for part in condition.parts]
            return EVERYTHING if EVERYTHING in parts else parts[0] if len(parts) == 1 else Either(tuple(parts))
        return self._literal(condition)

    def _literal(self, literal: Literal) -> Limit:
        if isinstance(literal, Linear):
            of_x, of_span = literal.of_q, literal.of_kv
            if self._x.value == "kv":
                of_x, of_span = of_span, of_x
            if of_x == 0:
                return When(literal)
            others = Sum(((self._span, of_span),)) if of_span else Sum(())
            return Between((Bound(of_x, literal.rest, 1, others),))
        if isinstance(literal, Truth):
            return EVERYTHING if self._on_x(literal.node) else When(literal)
        if isinstance(literal, Ordered):
            low, high = literal.low, literal.high
            if not (self._on_x(low) or self._on_x(high)):
                return When(literal)
            return self._solved(as_sum(high).plus(as_sum(low), -1))
        if not (self._on_x(literal.left) or self._on_x(literal.right)):
            return When(literal)
        return self._equality(literal)

    def _equality(self, literal: Equal) -> Limit:
        if not literal.wanted:
            return EVERYTHING
        total = as_sum(literal.left).plus(as_sum(literal.right), -1)
        above, under = self._solved(total), self._solved(total.times(-1))
        assert isinstance(above, Between) and isinstance(under, Between)
        return Between(above.bounds + under.bounds)

    def _solved(self, total: Sum) -> Limit:
        """``total >= 0`` solved for x: as x itself, or as one x // c."""
        on_x, others = total.split(self._on_x)
        if len(on_x.terms) != 1:
            return EVERYTHING
        ((atom, factor),) = on_x.terms
        if not self._near(others):
            return EVERYTHING
        if atom is self._x:
            return Between((Bound(factor, Sum(()), 1, others),))
        if atom.op != "floordiv" or abs(factor) != 1:
            return EVERYTHING
        inside, divisor = as_sum(atom.args[0]), atom.args[1]
        if not divisor.is_const or not 0 < divisor.integer < _FEW:
            return EVERYTHING
        x_inside, rest = inside.split(self._on_x)
        if any(self._moves(part) for part, _ in rest.terms) or [term[0] for term in x_inside.terms] != [self._x]:
            return EVERYTHING
        c = divisor.integer
        # x // c >= -top is x + c top >= 0; x // c <= top is x <= c top + c - 1.
        return Between(
            (Bound(factor * x_inside.terms[0][1], rest.times(factor).shifted(c - 1 if factor < 0 else 0), c, others),)
        )

    def _near(self, others: Sum) -> bool:
        """Whether 64 bits hold what is done with a bound."""
        return all(self._sizes.fits(atom, (-_MOST, _MOST)) and abs(factor) < _FEW for atom, factor in others.terms)

    def _moves(self, node: Node) -> bool:
        return any(part is self._span for part in below((node,)))
