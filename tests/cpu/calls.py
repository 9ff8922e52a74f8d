"""Calling variants of a built module in tests, and what they should give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fagen.runtime.check.compare import Expected, expect
from fagen.runtime.check.inputs import Inputs
from fagen.runtime.fakes import DTYPES


def draw(
    kernel: Any, B: int = 1, H: int = 2, Hk: int = 2, Sq: int = 5, Skv: int = 7, size: float = 1.0
) -> list[Tensor]:
    """Random q, k, v in the variant's layout and dtype; ``size`` multiplies q."""
    variant = kernel.variant

    def tensor(length: int, heads: int, dim: int) -> Tensor:
        middle = (heads, length) if variant.layout == "bhsd" else (length, heads)
        return torch.randn(B, *middle, dim)

    q, k, v = (
        tensor(Sq, H, variant.head_dim) * size,
        tensor(Skv, Hk, variant.head_dim),
        tensor(Skv, Hk, variant.value_dim),
    )
    return [each.to(DTYPES[variant.dtype]) for each in (q, k, v)]


def call(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    d_o: Tensor | None = None,
    d_lse: Tensor | None = None,
    scale: float | None = None,
    **extras: Any,
) -> dict[str, Tensor]:
    """o and lse and, given ``d_o`` or ``d_lse``, every gradient there is, by name: dq, dk, dv, d_sink, d_PARAM."""
    wanted = {param.name for param in kernel.variant.params if param.grad} | {"sink"}
    if d_o is None and d_lse is None:
        o, lse = kernel(q, k, v, scale=scale, return_lse=True, **extras)
        return {"o": o, "lse": lse}
    leaves = {"dq": q, "dk": k, "dv": v, **{f"d_{name}": tensor for name, tensor in extras.items() if name in wanted}}
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
    given = {name: leaves.get(f"d_{name}", tensor) for name, tensor in extras.items()}
    o, lse = kernel(leaves["dq"], leaves["dk"], leaves["dv"], scale=scale, return_lse=True, **given)
    seeds = [(output, seed) for output, seed in ((o, d_o), (lse, d_lse)) if seed is not None]
    gradients = torch.autograd.grad([o for o, _ in seeds], list(leaves.values()), [s for _, s in seeds])
    return {"o": o.detach(), "lse": lse.detach(), **dict(zip(leaves, gradients, strict=True))}


def judge(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    d_o: Tensor | None = None,
    d_lse: Tensor | None = None,
    scale: float | None = None,
    **extras: Any,
) -> dict[str, Tensor]:
    """Call, and hold all that comes out to the rule of every check. Returns it."""
    got = call(kernel, q, k, v, d_o=d_o, d_lse=d_lse, scale=scale, **extras)
    expected = expected_of(kernel, q, k, v, d_o=d_o, d_lse=d_lse, scale=scale, **extras)
    for deviation in expected.judge(got):
        assert deviation.passed, deviation
    return got


def expected_of(
    kernel: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    d_o: Tensor | None = None,
    d_lse: Tensor | None = None,
    scale: float | None = None,
    **extras: Any,
) -> Expected:
    """What the rule compares with."""
    params = {param.name: extras[param.name] for param in kernel.variant.params}
    seed = torch.zeros(*q.shape[:3], kernel.variant.value_dim, dtype=q.dtype) if d_o is None else d_o
    inputs = Inputs(q, k, v, seed, d_lse, extras.get("sink"), params, scale, {})
    if kernel.variant.dropout:
        inputs = replace(inputs, dropout_p=extras["dropout_p"], rng_state=extras["rng_state"])
    return expect(kernel.variant, inputs, gradients=d_o is not None or d_lse is not None)


def merge(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One (o, lse) of parts of the keys: o [B, S, H, D] in float64, lse [B, H, S]; empty parts change nothing."""
    lses = torch.stack([lse.double() for _, lse in parts])
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - torch.where(lse == -torch.inf, 0.0, lse))
    o = sum(weight.transpose(1, 2)[..., None] * o.double() for weight, (o, _) in zip(weights, parts, strict=True))
    assert isinstance(o, Tensor)
    return o, lse
