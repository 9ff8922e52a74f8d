"""The derivative of a variant: what forward keeps, how backward is called, and that it has no derivative itself.

Two ways lead here: torch.library.register_autograd on the ops, which torch.compile and torch.export see, and
:class:`Eager`, the same in an autograd.Function, which costs an eager call half as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .failures import second_order
from .fakes import DTYPES
from .variant import Variant


class Formula:
    """Calls the backward op of one variant and sorts its results by the arguments of forward."""

    def __init__(self, variant: Variant, backward: Any):
        self.name = variant.name
        self.backward = backward
        # Of the tensors after q, k and v: the bit of `needs` and the dtype of those that have a gradient.
        sink = ((1, torch.float32),) if variant.sink else ()
        params = ((2 << i, param) for i, param in enumerate(variant.params))
        rng_state = ((0, None),) * variant.dropout
        self.slots: tuple[tuple[int, Any], ...] = (
            *sink,
            *((bit, DTYPES[param.dtype]) if param.grad else (0, None) for bit, param in params),
            *rng_state,
        )

    def needs(self, needed: tuple[bool, ...]) -> int:
        """``needed`` says, for each tensor after q, k and v, whether its gradient is wanted."""
        return sum(bit for (bit, _), wanted in zip(self.slots, needed, strict=True) if wanted)

    def __call__(
        self,
        d_o: Tensor | None,
        d_lse: Tensor | None,
        saved: tuple[Tensor, ...],
        numbers: tuple[float, ...],
        needed: tuple[bool, ...],
    ) -> list[Tensor | None]:
        """The gradients of q, k, v and each tensor after them; None where not needed.

        ``saved`` is q, k, v, o, lse and the tensors after v; ``numbers`` are the call's scale and, with dropout,
        dropout_p; ``needed`` covers q, k, v and the tensors after v.
        """
        q, k, v, o, lse, *rest = saved
        if d_o is None:
            d_o = o.new_zeros(()).expand(o.shape)
        needs = self.needs(needed[3:])
        found = self.backward(d_o, d_lse, q, k, v, o, lse, *rest, *numbers, needs)
        return self.sort(found, needed)

    def sort(self, found: tuple[Tensor, ...], needed: tuple[bool, ...]) -> list[Tensor | None]:
        """Put what the backward op returned beside the tensors it belongs to."""
        results: list[Tensor | None] = [d if want else None for d, want in zip(found[:3], needed[:3], strict=True)]
        extra = iter(found[3:])
        for (bit, dtype), want in zip(self.slots, needed[3:], strict=True):
            gradient = next(extra) if bit else None
            results.append(gradient.to(dtype) if want and gradient is not None else None)
        return results


def register(library: torch.library.Library, variant: Variant, forward: Any, backward: Any) -> None:
    """Register the formula on the forward op, and on the backward op one that refuses."""
    formula = Formula(variant, backward)
    count = 1 + variant.dropout  # of numbers, behind the tensors

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        tensors = inputs[:-count]
        ctx.save_for_backward(*tensors[:3], *output, *tensors[3:])
        ctx.numbers = inputs[-count:]
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*formula(d_o, d_lse, ctx.saved_tensors, ctx.numbers, ctx.needs_input_grad[:-count]), *(None,) * count)

    def refuse(ctx: Any, *gradients: Tensor | None) -> None:
        raise second_order(variant.name)

    torch.library.register_autograd(forward, differentiate, setup_context=setup_context, lib=library)
    torch.library.register_autograd(backward, refuse, lib=library)


class Eager(torch.autograd.Function):
    """(kernel, numbers, q, k, v, tensors after v...) -> (o, lse), outside torch.compile and functorch transforms."""

    @staticmethod
    def forward(
        ctx: Any, kernel: Any, numbers: tuple[float, ...], q: Tensor, k: Tensor, v: Tensor, *rest: Tensor
    ) -> Any:
        o, lse = kernel.compute(q, k, v, rest, numbers)
        ctx.save_for_backward(q, k, v, o, lse, *rest)
        ctx.kernel = kernel
        ctx.numbers = numbers
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Tensor | None, d_lse: Tensor | None) -> Any:
        formula = ctx.kernel.formula
        arguments = (d_o, d_lse, ctx.saved_tensors, ctx.numbers, ctx.needs_input_grad[2:])
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return (None, None, *formula(*arguments))  # the backward op's own formula refuses a second derivative
        with torch._C._AutoDispatchBelowAutograd():
            return (None, None, *formula(*arguments))
