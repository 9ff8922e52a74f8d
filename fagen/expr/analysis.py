"""All that is known of a mask before run time: how to test a tile, and how to limit the loops."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.variant import Param, Variant
from .conditions import Analyst, keeps_to_the_past
from .graph import Graph, Node
from .limits import EVERYTHING, Limit, Solver
from .sizes import Sizes
from .tiles import OneOf, Possible, possible


@dataclass(frozen=True)
class MaskAnalysis:
    """``admits`` and ``refuses`` test whether a tile may hold an admitted, or a refused, pair; ``keys`` limits the keys
    for a span of rows, ``queries`` the rows for a span of keys. ``ends`` says whether rows that exist see no key past
    the last one, so that none need be shut out. Nodes are of ``graph``, over positions q and kv.
    """

    graph: Graph
    sizes: Sizes
    bottom_right: bool
    admits: Possible
    refuses: Possible
    keys: Limit
    queries: Limit
    ends: bool


def analyse(graph: Graph, variant: Variant, mask: Node | None) -> MaskAnalysis:
    """The analysis of a variant's mask, which is a node of ``graph`` (None: every pair)."""
    params: dict[str, Param] = {param.name: param for param in variant.params}
    sizes = Sizes(params)
    bottom_right = variant.align == "bottom_right"
    if mask is None:
        return MaskAnalysis(graph, sizes, bottom_right, OneOf(()), OneOf(()), EVERYTHING, EVERYTHING, False)
    shift = graph.sub(graph.name("kv_len"), graph.name("q_len")) if bottom_right else graph.integer(0)
    positions = {graph.name("i"): graph.sub(graph.name("q"), shift), graph.name("j"): graph.name("kv")}
    mask = graph.substitute(mask, positions)
    analyst = Analyst(graph, sizes)
    condition = analyst.condition(mask)
    return MaskAnalysis(
        graph,
        sizes,
        bottom_right,
        possible(condition),
        possible(analyst.condition(mask, False)),
        Solver(graph, sizes, "kv").limit(condition),
        Solver(graph, sizes, "q").limit(condition),
        bottom_right and keeps_to_the_past(condition),  # the last row is at the last key
    )
