"""Matrix products over the pairs a mask allows, where the other pairs contribute nothing, even if they hold NaN.

0 * NaN is NaN, so a plain product with probabilities of 0 would let a masked key's NaN into every row. Here the
product, its derivatives of any order and its forward-mode derivative leave out the pairs that are not allowed.

``unit``, where given, is the dtype in which a kernel multiplies: probabilities and score gradients are rounded to it
before they enter a product, which is then accumulated in the dtype of the tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def scores(q: Tensor, k: Tensor, allowed: Tensor | None, unit: torch.dtype | None = None) -> Tensor:
    """q [N, Sq, D] times k [N, Skv, D] transposed: [N, Sq, Skv]. ``allowed`` broadcasts to that; None allows all."""
    result: Tensor = _Scores.apply(q, k, allowed, unit)
    return result


def weighted(p: Tensor, v: Tensor, allowed: Tensor | None, unit: torch.dtype | None = None) -> Tensor:
    """p [N, Sq, Skv] times v [N, Skv, D]: [N, Sq, D]."""
    result: Tensor = _Weighted.apply(p, v, allowed, unit)
    return result


def dropped(p: Tensor, kept: Tensor) -> Tensor:
    """``p`` with zeros where ``kept`` is false. As in a product with 0, what is no number stays so in the gradient."""
    result: Tensor = _Dropped.apply(p, kept)
    return result


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(p: Tensor, kept: Tensor) -> Tensor:
        return torch.where(kept, p, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return gradients[0] * kept, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (kept,) = ctx.saved_tensors
        return torch.where(kept, tangents[0], 0.0)


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, allowed: Tensor | None, unit: torch.dtype | None) -> Tensor:
        return q @ k.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, allowed, ctx.unit = inputs
        ctx.save_for_backward(q, k, allowed)
        ctx.save_for_forward(q, k, allowed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, allowed = ctx.saved_tensors
        ds = _rounded(gradients[0], ctx.unit)
        return _contract(ds, k, allowed), _contract(ds.mT, q, _flipped(allowed)), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        q, k, _ = ctx.saved_tensors
        dq, dk = tangents[:2]
        parts = ([] if dq is None else [dq @ k.mT]) + ([] if dk is None else [q @ dk.mT])
        return torch.stack(parts).sum(0)


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(p: Tensor, v: Tensor, allowed: Tensor | None, unit: torch.dtype | None) -> Tensor:
        return _contract(_rounded(p, unit), v, allowed)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        p, v, allowed, ctx.unit = inputs
        ctx.save_for_backward(p, v, allowed)
        ctx.save_for_forward(p, v, allowed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        p, v, allowed = ctx.saved_tensors
        dp = gradients[0] @ v.mT
        if allowed is not None:
            dp = torch.where(allowed, dp, 0)
        return dp, _contract(_rounded(p, ctx.unit).mT, gradients[0], _flipped(allowed)), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        p, v, allowed = ctx.saved_tensors
        dp, dv = tangents[:2]
        parts = [] if dp is None else [_contract(dp, v, allowed)]
        parts += [] if dv is None else [_contract(_rounded(p, ctx.unit), dv, allowed)]
        return torch.stack(parts).sum(0)


def _rounded(x: Tensor, unit: torch.dtype | None) -> Tensor:
    return x if unit is None or unit == x.dtype else x.to(unit).to(x.dtype)


def _flipped(allowed: Tensor | None) -> Tensor | None:
    return None if allowed is None else allowed.mT


def _contract(a: Tensor, b: Tensor, allowed: Tensor | None) -> Tensor:
    """The sum over j of a[i, j] * b[j, c], over allowed pairs (i, j) alone."""
    if allowed is None:
        return a @ b
    a = torch.where(allowed, a, 0)
    if bool(b.isfinite().all()):
        return a @ b
    # What b's NaN and infinities add: by counting which of them each row meets, and with what sign.
    met = allowed.expand(a.shape)

    def count(rows: Tensor, entries: Tensor) -> Tensor:
        return rows.to(b.dtype) @ entries.to(b.dtype)

    up, down = b == torch.inf, b == -torch.inf
    nan = count(met, b.isnan()) + count(met & (a == 0), up | down) > 0
    rises = count(a > 0, up) + count(a < 0, down) > 0
    falls = count(a > 0, down) + count(a < 0, up) > 0
    extra = torch.where(rises, torch.inf, 0.0) - torch.where(falls, torch.inf, 0.0)
    extra = extra.masked_fill(nan, torch.nan)
    return a @ torch.where(b.isfinite(), b, 0) + extra.to(b.dtype)
