"""What is timed: calls of a module's variant and of its peers, each on tensors in its own best layout."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..runtime.module import Module
from ..runtime.variant import Variant
from .inputs import Inputs
from .measure import Context
from .peers import Peer


@dataclass(frozen=True)
class Call:
    """A forward call, within ``context``; ``leaves`` are its q, k and v, which require grad where it has a backward
    pass."""

    run: Callable[[], torch.Tensor]
    leaves: tuple[torch.Tensor, ...]
    context: Context = nullcontext

    @property
    def differentiable(self) -> bool:
        """Whether :func:`backward_call` has something to compute."""
        return self.leaves[0].requires_grad


def variant_call(module: Module, variant: Variant, inputs: Inputs, gradients: bool) -> Call:
    """A call of a variant by its name."""
    kernel: Any = module.kernels[variant.name]  # each variant has a signature of its own
    leaves = _leaves(inputs, gradients, exchange=False)
    return Call(partial(kernel, *leaves, **inputs.extras), leaves)


def attention_call(module: Module, variant: Variant, inputs: Inputs, gradients: bool) -> Call:
    """The same by the module's ``attention``, which finds the variant by what it computes."""
    leaves = _leaves(inputs, gradients, exchange=False)
    options: dict[str, Any] = {"scale": variant.scale, "align": variant.align, "layout": variant.layout}
    for name, expression in (("mask", variant.mask), ("score", variant.score)):
        options[name] = None if expression is None else expression.resolved
    attention: Any = module.attention  # its tensors are params by any name
    return Call(partial(attention, *leaves, **options, **inputs.extras), leaves)


def peer_call(peer: Peer, variant: Variant, inputs: Inputs, gradients: bool) -> Call:
    """A peer's call, on contiguous [B, H, S, D] tensors."""
    leaves = _leaves(inputs, gradients and peer.differentiable, exchange=variant.layout == "bshd")
    return Call(partial(peer.call, *leaves), leaves, peer.context)


def backward_call(call: Call) -> Callable[[], object]:
    """The gradients of q, k and v, over one graph again and again; to be called within the call's context, too."""
    with call.context():
        o = call.run()
    return partial(torch.autograd.grad, o, call.leaves, torch.randn_like(o), retain_graph=True)


def _leaves(inputs: Inputs, gradients: bool, *, exchange: bool) -> tuple[torch.Tensor, ...]:
    """q, k and v; to ``exchange`` sequence and heads takes a copy."""
    tensors = [tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v)]
    if exchange:
        tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
    return tuple(tensor.requires_grad_(gradients) for tensor in tensors)
