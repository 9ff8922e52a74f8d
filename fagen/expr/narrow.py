"""Whether a mask's tile test and limits are short work in 32 bits, and why not."""

from __future__ import annotations

from collections.abc import Iterator

from .affine import Sum
from .analysis import MaskAnalysis
from .conditions import Linear, Literal, nodes_of
from .graph import Node, below
from .limits import Between, Bound, Limit, When
from .sizes import Sizes
from .tiles import Conjunction, Possible, strip

# Numbers stay within this on both sides, so that 32 bits hold the sum of one and a position (Span32::kFar in bounds.h).
_MOST = 2**30
# More conditions than this, admitting and refusing ones together, are not asked by a warp with other things to do.
_MANY = 24
_WHOLE = (-_MOST + 1, _MOST - 1)


def why_not_narrow(analysis: MaskAnalysis) -> str:
    """What stands in the way; "" if nothing does."""
    literals = literals_of(analysis)
    bounds = list(_bounds(analysis.keys))
    every = below(tuple(_nodes(analysis, literals, bounds)))
    if any(node.op == "read" for node in every):
        return "it reads params"
    if any(node.type == "real" for node in every):
        return "it takes real numbers"
    if any(node.op in ("floordiv", "mod") and not node.args[1].is_const for node in every):
        return "it divides by what is known at run time alone"
    if any(_by_row(analysis, test) for test in _tests(analysis)):
        return "some of its conditions are solved row by row"
    if len(literals) > _MANY:
        return f"it asks for more than {_MANY} conditions"
    if not all(node.type == "bool" or analysis.sizes.fits(node, _WHOLE) for node in every):
        return "its numbers may take 64 bits"
    if not all(_reach(analysis, bound) < _MOST for bound in bounds):
        return "limits of its keys may take 64 bits"
    return ""


def literals_of(analysis: MaskAnalysis) -> list[Literal]:
    """The conditions of the test, admitting and refusing ones."""
    return [literal for test in _tests(analysis) for literal in (*test.linear, *test.others)]


def _tests(analysis: MaskAnalysis) -> list[Conjunction]:
    return [*_conjunctions(analysis.admits), *_conjunctions(analysis.refuses)]


def _conjunctions(test: Possible) -> Iterator[Conjunction]:
    if isinstance(test, Conjunction):
        yield test
    else:
        for part in test.parts:
            yield from _conjunctions(part)


def _bounds(limit: Limit) -> Iterator[Bound | Literal]:
    if isinstance(limit, Between):
        yield from limit.bounds
    elif isinstance(limit, When):
        yield limit.literal
    else:
        for part in limit.parts:
            yield from _bounds(part)


def _by_row(analysis: MaskAnalysis, test: Conjunction) -> bool:
    """Whether Pairs::narrow goes through the rows of a tile."""
    cuts = [strip(analysis.graph, condition) for condition in test.linear]
    return None in cuts or {"difference", "sum"} <= {cut.of for cut in cuts if cut is not None}


def _nodes(analysis: MaskAnalysis, literals: list[Literal], bounds: list[Bound | Literal]) -> Iterator[Node]:
    """All that is computed, or that what is computed is a part of."""
    graph = analysis.graph
    for each in (*literals, *bounds):
        if isinstance(each, Bound):
            yield from (each.rest.node(graph), each.others.node(graph))
        elif isinstance(each, Linear):
            yield each.rest.node(graph)
            cut = strip(graph, each)
            if cut is not None:
                yield cut.bound
        else:
            yield from nodes_of(each)


def _reach(analysis: MaskAnalysis, bound: Bound | Literal) -> int:
    """How far from 0 what a limit is computed from can be."""
    graph, sizes = analysis.graph, analysis.sizes
    if isinstance(bound, Bound):
        return _size(sizes, bound.rest.node(graph)) + bound.scale * _size(sizes, bound.others.node(graph)) + 1
    if isinstance(bound, Linear):
        moving = Sum(((graph.name("q"), bound.of_q),)) if bound.of_q else Sum(())
        return _size(sizes, bound.rest.node(graph)) + _size(sizes, moving.node(graph))
    return 0


def _size(sizes: Sizes, node: Node) -> int:
    return max(map(abs, sizes.range(node)))
