"""What a pair of a query and a key asks of a card's units beside its matrix products, counted from the graph."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.variant import Variant
from .emit import lowered
from .exponents import row_scores
from .graph import Graph, Node, below

# Results of the special-function unit by operation: an exponential and a reciprocal, a logarithm and an exponential,
# ...
_SPECIAL = {"exp": 1, "exp2": 1, "log": 1, "log2": 1, "sqrt": 1, "tanh": 2, "sigmoid": 2, "softplus": 1, "pow": 2}
# Instructions where they are more or fewer than one: the polynomial of tanh and the test of its argument; what is part
# of another instruction, as a sign is; what mostly is.
_INSTRUCTIONS = {"tanh_near": 8, "const": 0, "name": 0, "neg": 0, "abs": 0, "and": 0, "or": 0, "not": 0}


@dataclass(frozen=True)
class PairWork:
    """Of one pair in a tile that the mask leaves whole, on its shortest way: ``special`` results of the
    special-function unit, and the ``instructions`` of a thread, those for them among them, that there are at least."""

    special: int
    instructions: float


def work_of_pair(variant: Variant) -> PairWork:
    """What a variant's score and its softmax take."""
    graph = Graph()
    score, mask = lowered(graph, variant)
    found = row_scores(graph, score, mask)
    nodes = [node for node in below((found.near or found.exponent,)) if node.per_key]
    # The softmax's own: an exponential, its sum, and half of a conversion of two weights.
    special = 1 + sum(_special(node) for node in nodes)
    return PairWork(special, 2.5 + sum(_instructions(node) for node in nodes))


def _instructions(node: Node) -> int:
    if node.op in ("add", "sub") and any(arg.op == "mul" for arg in node.args):
        return 0  # one multiply-add
    return max(_INSTRUCTIONS.get(node.op, 1), _special(node))


def _special(node: Node) -> int:
    if node.op in ("div", "floordiv", "mod"):
        return int(node.args[1].per_key)  # a reciprocal, one for all pairs of a row
    return _SPECIAL.get(node.op, 0)
