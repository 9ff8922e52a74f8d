"""From a score to an exponent of 2, for kernels of Hopper: x · log2(e), less a reference that the kernel has.

A product of tensor cores is not scaled, the softmax takes powers of 2, and a score is mostly a sum of products with
factors that are one for a row: all of these factors become one for each term of the sum, so that a term costs one
multiply-add. Only where rounding allows it: a factor is brought inside a sum if ``s``, which is rounded itself, or a
function of it is one of the terms (what is left of two terms that cancel is no more exact than these), and nothing
changes in what something reads that jumps, such as a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .affine import Sum, as_sum
from .graph import REAL_FUNCTIONS, Graph, Node, below
from .steps import is_invertible, under_steps

_LOG2E = 1.4426950408889634
# A kernel's tiles have 256 keys at most, and 2^24 is what float32 counts to.
_MOST_FACTOR = 2**24 // 2 // 256


@dataclass(frozen=True)
class RowNodes:
    """``score`` is x, and ``exponent`` its exponent of 2, less ``reference``. ``near``, which is shorter, is that where
    none of ``tested`` is larger than kTanhNear, whatever its sign; None where there is no such form."""

    score: Node
    exponent: Node
    near: Node | None
    tested: tuple[Node, ...]


def row_scores(graph: Graph, score: Node, mask: Node | None) -> RowNodes:
    """What kernels compute that hold a lane's pairs of one row.

    ``raw`` is q · k and ``scale`` what makes it ``s``; a lane's keys are ``first`` and ``step`` further on.
    """
    score = _strided(graph, assuming(graph, score, mask))
    folding = _Folding(graph, score)
    whole = folding.exponent(score, graph.name("reference"))
    if not folding.tanhs:
        return RowNodes(folding.folded(score), whole, None, ())
    tested = tuple(folding.folded(tanh.args[0]) for tanh in folding.tanhs)
    short = _Folding(graph, score, short=True)
    return RowNodes(folding.folded(score), whole, short.exponent(score, graph.name("reference")), tested)


def assuming(graph: Graph, score: Node, mask: Node | None) -> Node:
    """A score as it is of pairs that the mask admits: without ``abs`` where that says which sign there is."""
    if mask is None:
        return score
    facts = list(_facts(mask))
    known: dict[Node, Node] = {}
    for node in below((score,)):
        if node.op == "abs" and node.type == "int":
            inside = as_sum(node.args[0])
            if _follows(inside, facts):
                known[node] = node.args[0]
            elif _follows(inside.times(-1), facts):
                known[node] = inside.times(-1).node(graph)
    return graph.substitute(score, known) if known else score


def _facts(mask: Node) -> Iterator[Sum]:
    """Sums that are 0 or more wherever the mask admits."""
    for part in mask.args if mask.op == "and" else (mask,):
        if part.op in ("lt", "le") and part.args[0].type == "int":
            yield as_sum(part.args[1]).plus(as_sum(part.args[0]), -1).shifted(-1 if part.op == "lt" else 0)


def _follows(total: Sum, facts: list[Sum]) -> bool:
    """Whether a sum is 0 or more where the facts hold: one of them and a number."""
    return any(not (rest := total.plus(fact, -1)).terms and rest.constant >= 0 for fact in facts)


def _strided(graph: Graph, score: Node) -> Node:
    """The score with integers that grow evenly from key to key converted once, at ``first``, and added to in float32.

    That is exact up to 2^24. Beyond, both the conversion and the sum round, each by half of the last bit at most:
    what is added is so small that both operands have the size of the result.
    """
    nodes = below((score,))
    stepped = under_steps(nodes)
    made: dict[Node, Node] = {}
    for node in nodes:
        if node.op != "to_real" or not node.per_key or node in stepped:
            continue
        is_size = node.args[0].op == "abs"
        grown = _grown(graph, node.args[0].args[0] if is_size else node.args[0])
        if grown is not None:
            made[node] = graph.arithmetic("abs", grown) if is_size else grown
    return graph.substitute(score, made) if made else score


def _grown(graph: Graph, node: Node) -> Node | None:
    keys, rest = as_sum(node).split(lambda atom: atom.per_key)
    factor = sum(count for _, count in keys.terms)
    if any(atom.op != "name" for atom, _ in keys.terms) or not 0 < abs(factor) <= _MOST_FACTOR:
        return None
    start = graph.to_real(rest.plus(Sum(((graph.name("first"), factor),))).node(graph))
    step = graph.mul(graph.name("step"), graph.real(float(abs(factor))))
    return graph.add(start, step) if factor > 0 else graph.sub(start, step)


@dataclass(frozen=True)
class _Term:
    """``node`` · ``factor`` · ``times``, the last one of the row."""

    node: Node
    factor: float
    times: Node | None

    def coefficient(self, graph: Graph) -> Node | None:
        """What the node is multiplied by, None for 1."""
        if self.times is None:
            return None if self.factor == 1.0 else graph.real(self.factor)
        if self.factor == -1.0:
            return graph.neg(self.times)
        return graph.mul(self.times, graph.real(self.factor))


def _is_plain(factor: float) -> bool:
    """Whether products with it neither overflow nor vanish where those they stand for do not."""
    return factor == 0.0 or 2.0**-100 < abs(factor) < 2.0**100


def _multiple(node: Node) -> tuple[Node, float, Node | None] | None:
    """What changes with the key, a number and what is of the row, None for 1, where a node is their product."""
    if node.op == "neg":
        return node.args[0], -1.0, None
    if node.op == "div" and is_invertible(node.args[1]) and _is_plain(1.0 / node.args[1].real):
        return node.args[0], 1.0 / node.args[1].real, None
    if node.op == "mul" and node.args[0].per_key != node.args[1].per_key:
        row, other = node.args if node.args[1].per_key else reversed(node.args)
        if not row.is_const:
            return other, 1.0, row
        return (other, row.real, None) if _is_plain(row.real) else None
    return None


class _Folding:
    """``short`` is for pairs near 0: ``tanhs``, those of sums of ``s``, have the form that is for such."""

    def __init__(self, graph: Graph, score: Node, *, short: bool = False):
        self._graph = graph
        nodes = below((score,))
        self._stepped = under_steps(nodes)
        self._linear: dict[Node, bool] = {}
        for node in nodes:
            self._linear[node] = node.per_key and node.type == "real" and self._is_linear(node)
        self._folded: dict[Node, Node] = {}
        self.tanhs = [
            node for node in nodes if node.op == "tanh" and node not in self._stepped and self._is_short(node.args[0])
        ]
        self._short = set(self.tanhs) if short else set()

    def _is_linear(self, node: Node) -> bool:
        """Whether ``s`` or a function of it is a term of it, or it is a row's multiple of such a sum."""
        if node.op == "name":
            return node.value == "s"
        if node.op in REAL_FUNCTIONS:
            return any(part.value == "s" and part.op == "name" for part in below(node.args))
        if node.op in ("add", "sub"):
            return any(self._linear[arg] for arg in node.args)
        multiple = _multiple(node)
        return multiple is not None and self._linear[multiple[0]]

    def _is_short(self, node: Node) -> bool:
        """Whether it is a row's multiple of ``s`` and a number of the row."""
        return self._linear.get(node, False) and all(
            term.node.value == "raw" for term, per_key in self._terms(node, 1.0, None) if per_key
        )

    def exponent(self, node: Node, less: Node) -> Node:
        """log2(e) · node - less."""
        if node.op == "select" and (self._linear[node.args[1]] or self._linear[node.args[2]]):
            return self._graph.select(node.args[0], *(self.exponent(arg, less) for arg in node.args[1:]))
        return self._total(node, _LOG2E, less)

    def _total(self, node: Node, factor: float, less: Node | None) -> Node:
        """factor · node - less, by a chain of multiply-adds, ``raw`` in the last one."""
        graph = self._graph
        terms = list(self._terms(node, factor, None))
        total: Node | None = None
        for term, per_key in terms:
            if not per_key:
                made = self._with(term, None)
                total = made if total is None else graph.add(total, made)
        if less is not None:
            total = graph.neg(less) if total is None else graph.sub(total, less)
        of_keys = [term for term, per_key in terms if per_key]
        for term in sorted(of_keys, key=lambda term: term.node.value == "raw"):
            total = self._with(term, total)
        assert total is not None
        return total

    def _with(self, term: _Term, total: Node | None) -> Node:
        """A term plus what there is besides."""
        graph = self._graph
        coefficient = term.coefficient(graph)
        if term.node in self._short:
            x = self.folded(term.node.args[0])
            return self._tanh_near(x, coefficient or graph.real(1.0), total)
        inside = self.folded(term.node)
        if coefficient is None:
            return inside if total is None else graph.add(inside, total)
        return graph.mul(inside, coefficient) if total is None else graph.arithmetic("fma", inside, coefficient, total)

    def _tanh_near(self, x: Node, factor: Node, total: Node | None) -> Node:
        return self._graph.arithmetic("tanh_near", x, factor, self._graph.real(-0.0) if total is None else total)

    def _terms(self, node: Node, factor: float, times: Node | None) -> Iterator[tuple[_Term, bool]]:
        """The terms of factor · times · node, and whether each changes with the key."""
        graph = self._graph
        if not node.per_key:
            if node.is_const and times is None:
                yield _Term(graph.real(node.real * factor), 1.0, None), False
            else:
                yield _Term(node, factor, times), False
        elif node.op == "name" and node.value == "s":
            yield _Term(graph.name("raw"), factor, self._times(times, graph.name("scale"))), True
        elif (multiple := _multiple(node)) and _is_plain(factor * multiple[1]):
            other, number, row = multiple
            yield from self._terms(other, factor * number, times if row is None else self._times(times, row))
        elif node.op in ("add", "sub") and self._linear[node]:
            yield from self._terms(node.args[0], factor, times)
            yield from self._terms(node.args[1], factor if node.op == "add" else -factor, times)
        else:
            yield _Term(node, factor, times), True

    def _times(self, a: Node | None, b: Node) -> Node:
        return b if a is None else self._graph.mul(a, b)

    def folded(self, root: Node) -> Node:
        """A node of the score over ``raw``, its sums of ``s`` folded wherever they stand."""
        graph, done = self._graph, self._folded
        for node in below((root,)):
            if node in done:
                continue
            if not node.per_key or node in self._stepped or node.op == "name" and node.value != "s":
                done[node] = node
            elif self._linear.get(node, False) and node.op not in REAL_FUNCTIONS:
                done[node] = self._total(node, 1.0, None)
            elif node in self._short:
                done[node] = self._tanh_near(done[node.args[0]], graph.real(1.0), None)
            else:
                done[node] = graph.again(node, tuple(done[arg] for arg in node.args))
        return done[root]
