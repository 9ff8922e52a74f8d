"""The parts of a KernelCode from which the backward's templates print what becomes of a tile's pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...expr import ArrayDeclaration, KernelCode, ParamGrad
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


def of_one_pair(grad: ParamGrad) -> bool:
    """Whether an element is read at one b, head, i and j: by pairs that one thread has, one after the other."""
    owner = set(grad.owner)
    return {"b", "i", "j"} <= owner and bool(owner & {"h", "hk"})


def exact_params(
    variant: Variant, code: KernelCode, alone: Callable[[ParamGrad], bool] = of_one_pair
) -> tuple[int, ...]:
    """The params whose gradients are summed exactly: with `deterministic`, those of which several threads may add to an
    element. ``alone`` says of a read that each element has all from one thread, if nothing else reads the param."""
    if not variant.deterministic:
        return ()
    reads: dict[int, list[ParamGrad]] = {}
    for grad in code.param_grads:
        reads.setdefault(grad.param_index, []).append(grad)
    return tuple(index for index, of_it in reads.items() if len(of_it) > 1 or not alone(of_it[0]))


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
            gradient_declaration(each, exact)
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


def gradient_declaration(array: ArrayDeclaration, exact: tuple[int, ...]) -> str:
    """The statement that makes what is added to, of a param's gradient. ``exact`` are the params with exact sums."""
    if array.param_index in exact:
        return f"const ExactGradient<{array.rank}> {array.name}({array.source}, p.exact[{array.param_index}]);"
    return f"const Gradient<{array.rank}> {array.name}({array.source});"


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
