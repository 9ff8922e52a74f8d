"""The middle end's one entry: from a variant to the code of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from ..errors import PlanError
from ..runtime.language import parse
from ..runtime.variant import Expression, Param, Tiles, Variant
from .access import classify, direct_axes, is_diagonal, owners
from .code import CPU_VECTOR, CUDA_SCALAR, Band, BandedScore, KernelCode, ParamGrad, RowScores, Snippet
from .derive import derivative
from .exponents import row_scores
from .graph import Graph, Node, below
from .lower import lower
from .print_bounds import print_bounds
from .printer import Printer, band_name, declare_array, declare_grad, element_type, grad_name
from .sizes import Sizes, settled


def emit(variant: Variant, dialect: str = CPU_VECTOR) -> KernelCode:
    """The C++ of a variant's score, mask, derivatives, tile test and loop limits.

    Raises LanguageError where an expression does not parse, PlanError for a dialect nothing prints yet or an integer
    that does not fit 64 bits.
    """
    return _emit(replace(variant, tiles=Tiles()), dialect)  # tiles decide nothing here, and tuning tries hundreds


@lru_cache(maxsize=16)
def _emit(variant: Variant, dialect: str) -> KernelCode:
    if dialect not in (CPU_VECTOR, CUDA_SCALAR):
        raise PlanError(f"no printer for the dialect {dialect!r}")
    lanes = dialect == CPU_VECTOR
    params = {param.name: param for param in variant.params}
    graph = Graph()
    score, mask = lowered(graph, variant)
    changed = variant.score is not None or variant.sink  # a sink has a scale of its own
    entries = _grad_reads(score, params)
    score_grad = _grad_snippet(graph, params, score, entries, None, lanes)
    score_grad_mask = _grad_snippet(graph, params, score, entries, mask, lanes) if mask is not None else None
    bounds = print_bounds(graph, variant, mask)
    return KernelCode(
        declarations=tuple(declare_array(param, index) for index, param in enumerate(variant.params)),
        grad_declarations=tuple(declare_grad(param, index) for index, param in enumerate(variant.params) if param.grad),
        score=_snippet(graph, params, (score,), lanes) if variant.score is not None else None,
        row_scores=_row_scores(graph, params, score, mask) if changed and not lanes else None,
        banded_score=_banded(graph, params, score, entries, mask) if variant.score is not None and not lanes else None,
        score_mask=_snippet(graph, params, (score, mask), lanes) if mask is not None else None,
        mask=_snippet(graph, params, (mask,), lanes) if mask is not None else None,
        score_grad=score_grad,
        score_grad_mask=score_grad_mask,
        param_grads=tuple(
            _param_grad(graph, params, list(params), entry, number, lanes) for number, entry in enumerate(entries)
        ),
        tile_test=bounds.tile_test,
        key_ranges=bounds.key_ranges,
        query_ranges=bounds.query_ranges,
        tests_params=bounds.params,
        mask_ends=bounds.ends,
        narrow=bounds.narrow,
        wide=bounds.wide,
    )


def lowered(graph: Graph, variant: Variant) -> tuple[Node, Node | None]:
    """The nodes of a variant's score (``s`` by default) and mask (None: every pair)."""
    score = graph.name("s")
    if variant.score is not None:
        score = graph.to_real(_lowered(graph, variant, variant.score, "score"))
    return score, None if variant.mask is None else _lowered(graph, variant, variant.mask, "mask")


def _lowered(graph: Graph, variant: Variant, expression: Expression, expect: Literal["mask", "score"]) -> Node:
    params = {param.name: param for param in variant.params}
    tree = parse(expression.resolved, params=params, expect=expect)
    return settled(graph, lower(graph, tree, params), Sizes(params))


def _snippet(
    graph: Graph,
    params: Mapping[str, Param],
    roots: tuple[Node, ...],
    lanes: bool,
    bands: Mapping[Node, str] | None = None,
) -> Snippet:
    printer = Printer(graph, params, lanes=lanes, bands=bands)
    printer.visit(roots)
    return printer.snippet(*(printer.vector(root) for root in roots))


def _row_scores(
    graph: Graph,
    params: Mapping[str, Param],
    score: Node,
    mask: Node | None,
    bands: Mapping[Node, str] | None = None,
) -> RowScores:
    found = row_scores(graph, score, mask)
    return RowScores(
        _snippet(graph, params, (found.score,), lanes=False, bands=bands),
        _snippet(graph, params, (found.exponent,), lanes=False, bands=bands),
        None if found.near is None else _snippet(graph, params, (found.near,), lanes=False, bands=bands),
        _snippet(graph, params, found.tested, lanes=False) if found.tested else None,
    )


def _banded(
    graph: Graph, params: Mapping[str, Param], score: Node, entries: list[Node], mask: Node | None
) -> BandedScore | None:
    """The score as a kernel has it that holds in shared memory what is read along diagonals."""
    names: dict[Node, str] = {}
    bands: list[Band] = []
    for node in _diagonal_reads(score, params):
        param = params[str(node.value)]
        names[node] = band_name(param.name, len(bands) + 1)
        bands.append(Band(names[node], element_type(param), _snippet(graph, params, (node,), lanes=False)))
    if not bands:
        return None
    loads = any(node.op == "read" and node.per_key and node not in names for node in below((score,), names))
    own, own_of_row = ({node: f"{name}.of(n, c, {row})" for node, name in names.items()} for row in ("row", "kRow"))
    return BandedScore(
        _row_scores(graph, params, score, mask, own_of_row),
        _grad_snippet(graph, params, score, entries, None, False, own),
        None if mask is None else _grad_snippet(graph, params, score, entries, mask, False, own),
        tuple(bands),
        loads,
    )


def _diagonal_reads(score: Node, params: Mapping[str, Param]) -> list[Node]:
    """Those that no other of them is an index of, in order of creation. Of elements that a word holds."""
    found: list[Node] = []
    stack, seen = [score], {score}
    while stack:
        node = stack.pop()
        if node.op == "read" and params[str(node.value)].dtype != "i64" and is_diagonal(node):
            found.append(node)
            continue
        stack.extend(arg for arg in node.args if arg not in seen)
        seen.update(node.args)
    return sorted(found, key=lambda node: node.number)


def _grad_reads(score: Node, params: Mapping[str, Param]) -> list[Node]:
    """The reads of the score that want a gradient, in order of creation."""
    return [node for node in below((score,)) if node.op == "read" and params[str(node.value)].grad]


def _grad_snippet(
    graph: Graph,
    params: Mapping[str, Param],
    score: Node,
    entries: list[Node],
    mask: Node | None,
    lanes: bool,
    bands: Mapping[Node, str] | None = None,
) -> Snippet:
    slopes = [derivative(graph, score, variable) for variable in (graph.name("s"), *entries)]
    roots = (score, *slopes) if mask is None else (score, *slopes, mask)
    printer = Printer(graph, params, lanes=lanes, bands=bands)
    printer.visit(roots)
    results = [printer.vector(score), *(printer.text(slope) for slope in slopes)]
    return printer.snippet(*results, *(() if mask is None else (printer.vector(mask),)))


def _param_grad(
    graph: Graph, params: Mapping[str, Param], order: list[str], entry: Node, number: int, lanes: bool
) -> ParamGrad:
    """How the gradient of one read is added up. Result 0 is x, 1 is dx/ds, then come the factors."""
    name = str(entry.value)
    array = grad_name(name)
    access = classify(graph, entry)
    printer = Printer(graph, params, f"g{number + 1}_", lanes=lanes)
    scatter: tuple[str, ...]
    if access.kind == "run" and lanes:
        line = f"{array}_line{number + 1}"
        made = f"const auto {line} = {printer.line(entry, access, array)};"
        start = printer.run_start(entry, access)
        call = "add_run" if access.direction == 1 else "add_reversed_run"
        row, scatter = (*printer.row, made), (f"{line}.{call}({start}, g);",)
    else:
        indices = [printer.index(index) for index in entry.args]
        if access.kind == "row":
            row, scatter = tuple(printer.row), (f"{array}.add({', '.join(['total', *indices])});",)
        else:
            call = f"{array}.{'scatter_add' if lanes else 'add'}({', '.join(['g', *indices])});"
            row, scatter = tuple(printer.row), (*printer.pair, call)
    return ParamGrad(
        param_index=order.index(name),
        name=name,
        kind="row" if access.kind == "row" else "pair",
        factor=number + 2,
        row=row,
        scatter=scatter,
        owner=owners(entry),
        axes=direct_axes(entry),
        diagonal=is_diagonal(entry),
    )
