"""The parts of a KernelCode from which the backward's templates print loops over pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...expr import KernelCode, ParamGrad, Snippet
from ...runtime.variant import Variant
from ..pieces import Piece, Scores, identifiers, needs, times, used_declarations, used_statements
from .param_sums import Sums


@dataclass(frozen=True)
class GradOfRead:
    """What a read of a param adds to its gradient.

    ``g`` is what a pair adds. Where a whole row reads one entry, ``total`` names the sum over its keys ("" elsewhere).
    ``row`` runs once a query row, ``scatter`` once a row if there is a total and else once a vector of keys.
    """

    g: str
    total: str
    row: tuple[str, ...]
    scatter: tuple[str, ...]


@dataclass(frozen=True)
class Slopes(Piece):
    """From a scaled score to ``x``, ``slope`` (d loss / d s, from dx = d loss / d x) and ``allowed`` ("" without a
    mask).

    ``row`` runs once a query row, ``pair`` once a vector of keys; then come ``grads``, into arrays that
    ``grad_declarations`` make.
    """

    row: tuple[str, ...]
    pair: tuple[str, ...]
    x: str
    slope: str
    allowed: str
    grad_declarations: tuple[str, ...]
    grads: tuple[GradOfRead, ...]


def slopes(code: KernelCode, variant: Variant, sums: Sums, snippet: Snippet, *, tail: bool) -> Slopes:
    """``tail`` says that keys may lie past the end, so that their index is compared with the length."""
    x, dx_ds, *rest = snippet.results
    grads = tuple(
        GradOfRead(times(rest[number]), f"total{number + 1}" if grad.kind == "row" else "", grad.row, grad.scatter)
        for number, grad in enumerate(code.param_grads)
    )
    statements = [line for grad in code.param_grads for line in (*grad.row, *grad.scatter)]
    names = identifiers((*snippet.row, *snippet.pair, *snippet.results, *statements))
    if tail:
        names |= {"j", "kv_len"}
    return Slopes(
        declarations=used_declarations(code.declarations, names),
        needs=needs(names, variant),
        row=snippet.row,
        pair=snippet.pair,
        x=_rounded(x),
        slope=times(dx_ds),
        allowed=rest[len(code.param_grads)] if len(rest) > len(code.param_grads) else "",
        grad_declarations=tuple(_grad_declaration(grad, code, sums) for grad in _first_reads(code)),
        grads=grads,
    )


def weights(code: KernelCode, variant: Variant) -> Scores:
    """From a scaled score to ``x`` and ``allowed`` by the statements that slopes are made with, without the others."""
    snippet = code.score_grad_mask or code.score_grad
    x = snippet.results[0]
    allowed = snippet.results[-1] if code.score_grad_mask else ""
    used = identifiers((x, allowed))
    pair = used_statements(snippet.pair, used)
    row = used_statements(snippet.row, used)
    used |= {"j", "kv_len"}
    return Scores(
        declarations=used_declarations(code.declarations, used),
        needs=needs(used, variant),
        row=row,
        pair=pair,
        x=_rounded(x),
        allowed=allowed,
    )


def _rounded(x: str) -> str:
    return x if x == "s" else f"rounded({x})"


def _first_reads(code: KernelCode) -> list[ParamGrad]:
    return list({grad.param_index: grad for grad in code.param_grads}.values())


def _grad_declaration(grad: ParamGrad, code: KernelCode, sums: Sums) -> str:
    """The middle end's declaration, of an array of what the sum is added up in."""
    declared = next(each for each in code.grad_declarations if each.param_index == grad.param_index)
    chosen = next(each for each in sums.params if each.index == grad.param_index)
    return replace(declared, element=chosen.type).text
