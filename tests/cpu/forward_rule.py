"""Forward calls of rendered kernels, judged against the float64 oracle by the rule of every check."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from kernels import DTYPES, kernel
from torch import Tensor

from fagen.runtime.check.compare import expect
from fagen.runtime.check.inputs import Inputs
from fagen.runtime.variant import Variant


def draw(
    variant: Variant, B: int = 2, H: int = 2, Hk: int = 2, Sq: int = 64, Skv: int = 64, *, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k, v in the variant's layout and dtype; ``spread`` multiplies q."""
    dtype = DTYPES[variant.dtype]

    def tensor(length: int, heads: int, dim: int) -> Tensor:
        middle = (heads, length) if variant.layout == "bhsd" else (length, heads)
        return torch.randn(B, *middle, dim)

    q = tensor(Sq, H, variant.head_dim) * spread
    return q.to(dtype), tensor(Skv, Hk, variant.head_dim).to(dtype), tensor(Skv, Hk, variant.value_dim).to(dtype)


def check(
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    isa: str = "native",
    scale: float | None = None,
    sink: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the kernel and hold o and lse to the rule, row by row. Returns them."""
    o, lse = kernel(variant, isa)(q, k, v, scale=scale, sink=sink, params=params)
    inputs = Inputs(q, k, v, torch.zeros_like(o), None, sink, dict(params or {}), scale, {})
    for deviation in expect(variant, inputs, gradients=False).judge({"o": o, "lse": lse}):
        assert deviation.passed, deviation
    return o, lse
