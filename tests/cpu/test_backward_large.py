"""Gradients where scores, and lse with them, are so large that a float32 lse is coarse: weights still add up to 1.

Every score here is a float32 exactly, so nothing but lse is rounded before the weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from backward_kernels import backward_kernel
from kernels import variant
from torch import Tensor

from fagen.runtime.reference import reference
from fagen.runtime.variant import Param, Variant
from fagen.target import ISAS, native_isa

RUNNABLE = list(ISAS)[list(ISAS).index(native_isa()) :]
POWERS = (10, 13, 16, 20, 22, 24, 27, 30)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def compare(
    v: Variant,
    q: Tensor,
    k: Tensor,
    value: Tensor,
    *,
    isa: str = "native",
    sink: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    tolerance: float = 2.0**-19,
) -> dict[str, Tensor]:
    """Each gradient within a share of its largest element of autograd's on the oracle."""
    kernel = backward_kernel(v, isa)
    params = dict(params or {})
    o, lse = kernel.forward(q, k, value, sink=sink, params=params)
    d_o, d_lse = torch.randn(o.shape).to(o.dtype), torch.randn(lse.shape)
    got = kernel(q, k, value, o, lse, d_o, d_lse, sink=sink, params=params)
    named = {"dq": q, "dk": k, "dv": value} | ({} if sink is None else {"d_sink": sink})
    named |= {f"d_{param.name}": params[param.name] for param in v.params if param.grad}
    leaves = {name: tensor.double().requires_grad_() for name, tensor in named.items()}
    o64, lse64 = reference(
        v,
        leaves["dq"],
        leaves["dk"],
        leaves["dv"],
        sink=leaves.get("d_sink"),
        params={name: leaves.get(f"d_{name}", tensor) for name, tensor in params.items()},
    )
    loss = (o64 * d_o).sum() + torch.where(lse64.isfinite(), lse64 * d_lse, 0.0).sum()
    for name, want in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
        size = float(want.abs().max())
        error = float((got[name].double() - want).abs().max())
        assert error <= tolerance * size, f"{name}: off by {error:.3g} of {size:.3g}"
    return got


def rows(scores: Tensor, power: int, Sq: int, heads: int = 1, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k, v with q · k = 2^power + scores[j] · (spacing of float32 there), in halves of head_dim 4 that add up."""
    n = len(scores)
    q = torch.zeros(1, Sq, heads, 4)
    q[..., 0], q[..., 1] = 2.0**power, 2.0 ** max(power - 23, -3)
    k = torch.zeros(1, n, 1, 4)
    k[..., 0], k[..., 1] = 1.0, scores[None, :, None]
    k[..., 2] = 0.125 * (torch.arange(n) % 9)[None, :, None]  # tells keys apart, and changes no score
    return q.to(dtype), k.to(dtype), torch.randn(1, n, 1, 4).to(dtype)


def plain(name: str, dtype: str = "f32", **fields: object) -> Variant:
    return variant(name, 4, dtype, backward=True, scale=1.0, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("power", POWERS)
def test_equal_scores(isa: str, power: int) -> None:
    """A number of keys that is no power of two, few and in several tiles; their weight is its inverse, to the bit."""
    v = plain("equal")
    for n in (3, 8, 700):
        q, k, value = rows(torch.zeros(n), power, 5)
        got = compare(v, q, k, value, isa=isa)
        if n == 8:
            o, lse = backward_kernel(v, isa).forward(q, k, value)
            dv = backward_kernel(v, isa)(q, k, value, o, lse, torch.ones_like(o), None)["dv"]
            assert torch.equal(dv, torch.full_like(dv, 5 / 8))
        assert all(tensor.isfinite().all() for tensor in got.values())


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("power", POWERS[1:])  # at the first, the rows that see no peak have a small lse
def test_several_peaks(isa: str, power: int) -> None:
    """Two keys at the top, two a step below, and some far below; causal, so that rows see different ones."""
    scores = torch.full((300,), -4096.0)
    scores[[3, 120, 150, 299]] = 0.0
    scores[[4, 121]] = -1.0
    compare(plain("peaks", mask="causal"), *rows(scores, power, 300, heads=2), isa=isa)


@pytest.mark.parametrize("power", POWERS)
def test_the_sink_is_part_of_the_sum(power: int) -> None:
    sink = torch.tensor([2.0**power, 2.0**power - 2.0 ** max(power - 22, 0), 3.0])
    compare(plain("sunk", sink=True, mask="q != 2"), *rows(torch.zeros(6), power, 4, heads=3), sink=sink)


@pytest.mark.parametrize("power", (12, 16, 24, 30))
@pytest.mark.parametrize("dtype", ("bf16", "f16"))
def test_rounded_operands(dtype: str, power: int) -> None:
    if dtype == "f16" and power > 15:
        pytest.skip("q would not be a float16")
    kinds = {"bf16": torch.bfloat16, "f16": torch.float16}
    q, k, value = rows(torch.zeros(100), power, 70, dtype=kinds[dtype])
    compare(plain("rounded", dtype, mask="causal"), q, k, value, tolerance=2.0**-6 if dtype == "bf16" else 2.0**-9)


def test_large_rows_beside_others() -> None:
    """Rows of ordinary size in the same tile keep their bits; gradients of params take part."""
    slope = Param("slope", "f32", ("H",), grad=True)
    v = plain("beside", mask="causal", score="s + slope[h] * (kv - q)", params=(slope,))
    q, k, value = rows(torch.zeros(150), 22, 150, heads=2)
    small = torch.rand(150) < 0.5
    q[:, small] = torch.randn_like(q[:, small])
    params = {"slope": torch.tensor([0.5, 1.0])}
    compare(v, q, k, value, params=params)
    kernel, alone = backward_kernel(v), q.clone()
    alone[:, ~small] = 0.0
    found = []
    for queries in (q, alone):
        o, lse = kernel.forward(queries, k, value, params=params)
        d_o = torch.ones_like(o)
        found.append(kernel(queries, k, value, o, lse, d_o, None, params=params)["dq"][:, small])
    assert torch.equal(*found)


def test_what_a_nan_cannot_reach_is_normalised_too() -> None:
    v = plain("contained", mask="causal")
    q, k, value = rows(torch.zeros(200), 24, 200)
    clean = compare(v, q, k, value)["dq"]
    k[:, 130], value[:, 90] = float("nan"), float("inf")
    kernel = backward_kernel(v)
    torch.manual_seed(0)
    rows(torch.zeros(200), 24, 200)
    o, lse = kernel.forward(q, k, value)
    d_o, d_lse = torch.randn(o.shape), torch.randn(lse.shape)
    dq = kernel(q, k, value, o, lse, d_o, d_lse)["dq"]
    assert torch.equal(dq[:, :90], clean[:, :90])
    assert dq[:, 130:].isnan().any()


def test_an_lse_that_other_keys_have_a_part_in() -> None:
    """Half of the keys, with lse and o of all: their gradients are what they are in the whole."""
    v = plain("parts")
    q, k, value = rows(torch.zeros(8), 11, 3)
    kernel = backward_kernel(v)
    o, lse = kernel.forward(q, k, value)
    d_o = torch.randn(o.shape)
    whole = kernel(q, k, value, o, lse, d_o, None)
    part = kernel(q, k[:, :4].contiguous(), value[:, :4].contiguous(), o, lse, d_o, None)
    for name in ("dk", "dv"):
        assert torch.allclose(part[name], whole[name][:, :4], rtol=2.0**-11)
