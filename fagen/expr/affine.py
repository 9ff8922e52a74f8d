"""Integer nodes as sums: a constant plus whole multiples of atoms, which are nodes that are no such sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .graph import Graph, Node, below


@dataclass(frozen=True)
class Sum:
    """``constant`` + Σ coefficient · atom, over ``terms`` with coefficients other than 0, in order of creation."""

    terms: tuple[tuple[Node, int], ...]
    constant: int = 0

    @classmethod
    def of(cls, terms: dict[Node, int], constant: int) -> Sum:
        kept = sorted(((atom, factor) for atom, factor in terms.items() if factor), key=lambda term: term[0].number)
        return cls(tuple(kept), constant)

    def plus(self, other: Sum, factor: int = 1) -> Sum:
        """self + factor · other."""
        terms = dict(self.terms)
        for atom, count in other.terms:
            terms[atom] = terms.get(atom, 0) + factor * count
        return Sum.of(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> Sum:
        """factor · self."""
        return Sum.of({atom: factor * count for atom, count in self.terms}, factor * self.constant)

    def shifted(self, by: int) -> Sum:
        """self + by."""
        return Sum(self.terms, self.constant + by)

    def coefficient(self, atom: Node) -> int:
        """How often the sum holds an atom."""
        return dict(self.terms).get(atom, 0)

    def without(self, *atoms: Node) -> Sum:
        """The rest of the sum."""
        return Sum(tuple(term for term in self.terms if term[0] not in atoms), self.constant)

    def split(self, test: Callable[[Node], bool]) -> tuple[Sum, Sum]:
        """The terms whose atoms pass, and the rest with the constant."""
        return (
            Sum(tuple(term for term in self.terms if test(term[0]))),
            Sum(tuple(term for term in self.terms if not test(term[0])), self.constant),
        )

    def node(self, graph: Graph) -> Node:
        """The node that computes the sum; positive terms first, so that it reads well."""
        total: Node | None = None
        for atom, factor in sorted(self.terms, key=lambda term: term[1] < 0):
            term = graph.mul(atom, graph.integer(abs(factor)))
            if total is None:
                total = term if factor > 0 else graph.neg(term)
            else:
                total = graph.add(total, term) if factor > 0 else graph.sub(total, term)
        if total is None:
            return graph.integer(self.constant)
        if self.constant < 0:
            return graph.sub(total, graph.integer(-self.constant))
        return graph.add(total, graph.integer(self.constant))


def as_sum(node: Node) -> Sum:
    """An integer node as a sum."""
    done: dict[Node, Sum] = {}
    for part in below((node,)):
        if part.type == "int":
            done[part] = _sum_of(part, done)
    return done[node]


def _sum_of(node: Node, done: dict[Node, Sum]) -> Sum:
    match node.op:
        case "const":
            return Sum((), node.integer)
        case "neg":
            return done[node.args[0]].times(-1)
        case "add" | "sub":
            return done[node.args[0]].plus(done[node.args[1]], 1 if node.op == "add" else -1)
        case "mul":
            a, b = (done[arg] for arg in node.args)
            if not a.terms:
                return b.times(a.constant)
            if not b.terms:
                return a.times(b.constant)
    return Sum(((node, 1),))
