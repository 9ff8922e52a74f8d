"""The calls made under torch.func.grad, vjp, vmap and their like, which need autograd.Functions of their own form.

vmap folds its dim into the batch where that cannot be seen from within the variant's expressions, and otherwise runs
one call after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .failures import forward_mode, no_gradient, second_order


class Forward(torch.autograd.Function):
    """(kernel, numbers, q, k, v, tensors after v...) -> (o, lse)."""

    @staticmethod
    def forward(kernel: Any, numbers: tuple[float, ...], q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> Any:
        return kernel.compute(q, k, v, rest, numbers)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        kernel, numbers, q, k, v, *rest = inputs
        ctx.save_for_backward(q, k, v, *output, *rest)
        ctx.kernel = kernel
        ctx.numbers = numbers

    @staticmethod
    def backward(ctx: Any, d_o: Tensor, d_lse: Tensor) -> Any:
        kernel, needed = ctx.kernel, ctx.needs_input_grad[2:]
        for (bit, _), want, argument in zip(kernel.formula.slots, needed[3:], kernel.arguments, strict=True):
            if want and not bit:
                raise no_gradient(kernel.variant, argument, kernel.spec_file)
        needs = kernel.formula.needs(needed[3:])
        found = Backward.apply(kernel, ctx.numbers, needs, d_o, d_lse, *ctx.saved_tensors)
        return (None, None, *kernel.formula.sort(found, needed))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(ctx.kernel.name)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], kernel: Any, numbers: tuple[float, ...], *tensors: Tensor) -> Any:
        dims = in_dims[2:]
        batch_like = (True,) * 3 + kernel.batch_like
        if not can_fold(kernel, dims, batch_like):
            return in_turn(info.batch_size, dims, tensors, lambda *each: Forward.apply(kernel, numbers, *each))
        folded = fold(info.batch_size, dims, tensors, batch_like)
        results = Forward.apply(kernel, numbers, *folded)
        return tuple(unfold(info.batch_size, result) for result in results), (0, 0)


class Backward(torch.autograd.Function):
    """(kernel, numbers, needs, d_o, d_lse, q, k, v, o, lse, tensors after v...) -> what the backward op returns."""

    @staticmethod
    def forward(kernel: Any, numbers: tuple[float, ...], needs: int, d_o: Tensor, d_lse: Tensor, *saved: Tensor) -> Any:
        return tuple(kernel.ops.backward(d_o, d_lse, *saved, *numbers, needs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.kernel = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise second_order(ctx.kernel.name)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise forward_mode(ctx.kernel.name)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], kernel: Any, numbers: tuple[float, ...], needs: int, *tensors: Tensor
    ) -> Any:
        dims = in_dims[3:]
        batch_like = (True,) * 7 + kernel.batch_like
        # The gradient of a tensor without a batch dim is summed over the batch, so it cannot be told apart once folded.
        summed = any(
            needs & bit and not like for (bit, _), like in zip(kernel.formula.slots, kernel.batch_like, strict=True)
        )
        if summed or not can_fold(kernel, dims, batch_like):
            return in_turn(info.batch_size, dims, tensors, lambda *each: Backward.apply(kernel, numbers, needs, *each))
        folded = fold(info.batch_size, dims, tensors, batch_like)
        results = Backward.apply(kernel, numbers, needs, *folded)
        wanted = [True] * 3 + [bool(needs & bit) for bit, _ in kernel.formula.slots if bit]
        values = tuple(unfold(info.batch_size, r) if want else r for r, want in zip(results, wanted, strict=True))
        return values, tuple(0 if want else None for want in wanted)


def can_fold(kernel: Any, dims: Sequence[int | None], batch_like: Sequence[bool]) -> bool:
    """Whether the vmapped dim may become part of the batch: no tensor without a batch dim carries it."""
    return kernel.foldable and all(like or dim is None for like, dim in zip(batch_like, dims, strict=True))


def fold(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor], batch_like: Sequence[bool]) -> list[Tensor]:
    """Each tensor with a batch dim B, as [size * B, ...]."""
    folded = []
    for tensor, dim, like in zip(tensors, dims, batch_like, strict=True):
        if like:
            whole = tensor.movedim(dim, 0) if dim is not None else tensor.expand(size, *tensor.shape)
            tensor = whole.reshape(size * whole.shape[1], *whole.shape[2:])
        folded.append(tensor)
    return folded


def unfold(size: int, tensor: Tensor) -> Tensor:
    """[size * B, ...] as [size, B, ...]."""
    return tensor.reshape(size, tensor.shape[0] // size, *tensor.shape[1:])


def in_turn(size: int, dims: Sequence[int | None], tensors: Sequence[Tensor], call: Any) -> Any:
    """``call`` on each slice, its results stacked."""
    results = [
        call(*(t if dim is None else t.select(dim, i) for t, dim in zip(tensors, dims, strict=True)))
        for i in range(size)
    ]
    return tuple(torch.stack(column) for column in zip(*results, strict=True)), (0,) * len(results[0])
