"""The parts of a KernelCode from which the backward's templates print what becomes of a tile's pairs."""

from __future__ import annotations

from dataclasses import dataclass

from ...expr import KernelCode, ParamGrad
from ...runtime.variant import Variant
from ..pieces import Piece, Scores, identifiers, needs, times, used_declarations, used_statements


@dataclass(frozen=True)
class GradOfRead:
    """What a read of a param adds to its gradient.

    ``g`` is what a pair adds. ``kind`` says when ``scatter`` runs: once a "pair", or with the sum over the pairs of a
    query "row", or of a whole "tile" of a warp, which ``total`` names.
    """

    g: str
    kind: str
    total: str
    scatter: tuple[str, ...]


@dataclass(frozen=True)
class Slopes(Piece):
    """From a scaled score to ``x`` and ``slope`` (d loss / d s, from dx = d loss / d x).

    ``row`` runs once a query row, ``pair`` once a pair; then come ``grads``, into arrays that ``grad_declarations``
    make.
    """

    row: tuple[str, ...]
    pair: tuple[str, ...]
    x: str
    slope: str
    grad_declarations: tuple[str, ...]
    grads: tuple[GradOfRead, ...]

    @property
    def row_totals(self) -> tuple[str, ...]:
        """The sums over query rows."""
        return tuple(grad.total for grad in self.grads if grad.kind == "row")

    @property
    def tile_totals(self) -> tuple[str, ...]:
        """Those over tiles."""
        return tuple(grad.total for grad in self.grads if grad.kind == "tile")


def exact_params(variant: Variant, code: KernelCode) -> tuple[int, ...]:
    """The params whose gradients are summed exactly: with `deterministic`, those of which several threads may add to an
    element. One that is read at b, at a head, at i and at j has each element from one thread alone."""
    if not variant.deterministic:
        return ()
    reads: dict[int, list[ParamGrad]] = {}
    for grad in code.param_grads:
        reads.setdefault(grad.param_index, []).append(grad)
    return tuple(index for index, of_it in reads.items() if len(of_it) > 1 or not _alone(of_it[0]))


def _alone(grad: ParamGrad) -> bool:
    owner = set(grad.owner)
    return {"b", "i", "j"} <= owner and bool(owner & {"h", "hk"})


def slopes(code: KernelCode, variant: Variant, *, scored: bool) -> Slopes:
    """Of pairs that count and of others alike. Not ``scored``, x is s, and the template makes weights of q · k."""
    snippet = code.score_grad
    x, dx_ds, *factors = snippet.results
    exact = exact_params(variant, code)
    grads = tuple(_grad(grad, number, factors[number]) for number, grad in enumerate(code.param_grads))
    statements = [line for grad in grads for line in grad.scatter]
    names = identifiers((*snippet.row, *snippet.pair, *((x,) if scored else ()), dx_ds, *factors, *statements))
    return Slopes(
        declarations=used_declarations(code.declarations, names),
        needs=needs(names, variant),
        row=snippet.row,
        pair=snippet.pair,
        x=x,
        slope=times(dx_ds),
        grad_declarations=tuple(
            _declaration(each.name, each.rank, each.source, each.param_index in exact, each.param_index)
            for each in code.grad_declarations
            if each.param_index in {grad.param_index for grad in code.param_grads}
        ),
        grads=grads,
    )


def _grad(grad: ParamGrad, number: int, factor: str) -> GradOfRead:
    scatter = (*grad.row, *grad.scatter)
    kind = grad.kind
    if kind == "row" and not {"i", "q"} & identifiers(scatter):
        kind = "tile"
    return GradOfRead(times(factor), kind, "" if kind == "pair" else f"total{number + 1}", scatter)


def _declaration(name: str, rank: int, source: str, exact: bool, index: int) -> str:
    if exact:
        return f"const ExactGradient<{rank}> {name}({source}, p.exact[{index}]);"
    return f"const Gradient<{rank}> {name}({source});"


def weights(code: KernelCode, variant: Variant, *, scored: bool) -> Scores:
    """From a scaled score to ``x`` and ``allowed`` by the statements that slopes are made with, without the others."""
    snippet = code.score_grad_mask or code.score_grad
    x = snippet.results[0]
    allowed = snippet.results[-1] if code.score_grad_mask else ""
    used = identifiers((x, allowed) if scored else (allowed,))
    pair = used_statements(snippet.pair, used)
    row = used_statements(snippet.row, used)
    used |= {"j", "kv_len"}
    return Scores(used_declarations(code.declarations, used), needs(used, variant), row, pair, x, allowed)
