"""Gradients of several outputs, from given gradients of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Root(torch.autograd.Function):
    """A scalar whose derivative by each of ``outputs`` is the seed beside it, the very tensor."""

    @staticmethod
    def forward(ctx: Any, seeds: tuple[Tensor, ...], *outputs: Tensor) -> Tensor:
        ctx.seeds = seeds
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, one: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *ctx.seeds)


def pull(
    outputs: Sequence[Tensor],
    leaves: Sequence[Tensor],
    seeds: Sequence[Tensor],
    *,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Tensor, ...]:
    """torch.autograd.grad(outputs, leaves, seeds), which would import sympy: torch may stand without it."""
    root = _Root.apply(tuple(seeds), *outputs)
    return torch.autograd.grad(root, list(leaves), retain_graph=retain_graph, allow_unused=allow_unused)
