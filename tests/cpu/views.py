"""The same values in other memory: strides, gaps, offsets, poison between."""

from __future__ import annotations

import random

import torch
from torch import Tensor


def elsewhere(t: Tensor, seed: int) -> Tensor:
    """A view of a larger buffer with the values of ``t``: dims in any order of memory, gaps between elements, rows
    and heads, any offset. What lies between is NaN, or a number that no index may reach."""
    draw = random.Random(seed)
    order = draw.sample(range(t.dim()), t.dim())
    gaps = [draw.choice((1, 1, 2, 3)) for _ in range(t.dim())]
    strides, step = [0] * t.dim(), 1
    for dim in reversed(order):
        strides[dim] = step * gaps[dim]
        step *= max(t.shape[dim], 1) * gaps[dim] + draw.choice((0, 0, 1))
    offset = draw.randrange(8)
    poison = torch.nan if t.is_floating_point() else 2**30
    buffer = torch.full((offset + step + 8,), True if t.dtype == torch.bool else poison, dtype=t.dtype)
    view = buffer.as_strided(t.shape, strides, offset)
    with torch.no_grad():
        view.copy_(t)
    return view.requires_grad_(t.requires_grad)
