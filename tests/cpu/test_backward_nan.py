"""Backward: what the mask excludes does not matter, not even NaN, and what it admits is seen."""

from __future__ import annotations

import pytest
import torch
from backward_kernels import backward_kernel
from forward_rule import draw
from kernels import DTYPES, variant
from torch import Tensor

from fagen.runtime.variant import Param, Tiles, Variant

BAD = (torch.nan, torch.inf, -torch.inf, 1e4)
TILES = Tiles(q=24, kv=64)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def gradients(v: Variant, q: Tensor, k: Tensor, w: Tensor, d_o: Tensor, d_lse: Tensor) -> dict[str, Tensor]:
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w)
    return call(q, k, w, o, lse, d_o, d_lse)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["window(40, 5)", "q % 3 != kv % 2"])
def test_a_poisoned_row_reaches_its_pairs_alone(dtype: str, mask: str) -> None:
    """One bad element of q, k, v or dO: gradients of what the mask keeps from it are the same bits."""
    v = variant("contain", 32, dtype, mask=mask, tiles=TILES, backward=True)
    S = 150
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=S, Skv=S)
    d_o, d_lse = torch.randn(q.shape).to(q.dtype), torch.randn(1, 1, S)
    want = gradients(v, q, k, w, d_o, d_lse)
    i, j = torch.arange(S)[:, None], torch.arange(S)
    admits = {"window(40, 5)": (j >= i - 40) & (j <= i + 5), "q % 3 != kv % 2": i % 3 != j % 2}[mask]
    for at, bad in ((0, BAD[0]), (31, BAD[1]), (64, BAD[2]), (149, BAD[1]), (100, BAD[0])):
        for poisoned in ("q", "k", "v", "d_o"):
            given = {"q": q.clone(), "k": k.clone(), "v": w.clone(), "d_o": d_o.clone()}
            given[poisoned][0, at, 0, 5] = bad
            got = gradients(v, given["q"], given["k"], given["v"], given["d_o"], d_lse)
            if poisoned in ("q", "d_o"):
                rows = torch.zeros(S, dtype=torch.bool)
                rows[at] = True
            else:
                rows = admits[:, at]
            keys = admits[rows].any(0)
            clean = (at, poisoned, bad)
            assert torch.equal(got["dq"][0, ~rows], want["dq"][0, ~rows]), clean
            for name in ("dk", "dv"):
                assert torch.equal(got[name][0, ~keys], want[name][0, ~keys]), clean
            if bad != bad and poisoned != "v":
                assert not got["dq"][0, rows].isfinite().any(-1).any() or poisoned == "d_o", clean
                assert not got["dk"][0, keys].isfinite().all(-1).any(), clean


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_see_nothing_do_not_matter(dtype: str) -> None:
    """Their q and dO hold NaN; their gradients are zeros."""
    v = variant("unseeing", 32, dtype, mask="causal", tiles=TILES, backward=True)
    q, k, w = draw(v, B=1, H=2, Hk=1, Sq=100, Skv=70)
    d_o, d_lse = torch.randn(q.shape).to(q.dtype), torch.randn(1, 2, 100)
    want = gradients(v, q, k, w, d_o, d_lse)
    assert (want["dq"][0, :30] == 0).all()
    for bad in BAD:
        q2, d_o2, d_lse2 = q.clone(), d_o.clone(), d_lse.clone()
        q2[0, :30], d_o2[0, :30], d_lse2[0, :, :30] = bad, bad, bad
        got = gradients(v, q2, k, w, d_o2, d_lse2)
        assert all(torch.equal(got[name], want[name]) for name in want), bad


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_score_of_minus_infinity_empties_a_row(dtype: str) -> None:
    """No mask, and yet rows without keys among others, in tiles that are full."""
    bias = Param("bias", "f32", ("Sq", "n"), grad=False)
    v = variant("emptied", 32, dtype, score="s + bias[i, 0]", params=(bias,), backward=True)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=70, Skv=130)
    shift = torch.zeros(70, 1)
    shift[::3] = -torch.inf
    call = backward_kernel(v)
    o, lse = call.forward(q, k, w, params={"bias": shift})
    d_o, d_lse = torch.randn(o.shape).to(o.dtype), torch.randn(lse.shape)
    got = call(q, k, w, o, lse, d_o, d_lse, params={"bias": shift})
    assert (got["dq"][0, ::3] == 0).all() and all(gradient.isfinite().all() for gradient in got.values())
    some = torch.arange(70) % 3 != 0
    fewer = call(
        q[:, some], k, w, o[:, some], lse[..., some].contiguous(), d_o[:, some], d_lse[..., some].contiguous(),
        params={"bias": shift[some]},
    )  # fmt: skip
    assert torch.equal(got["dq"][:, some], fewer["dq"])
    for name in ("dk", "dv"):
        assert torch.allclose(got[name].float(), fewer[name].float(), rtol=1e-2, atol=1e-2 * fewer[name].abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", BAD)
def test_what_lies_past_the_end_is_not_read(dtype: str, bad: float) -> None:
    v = variant("past_end", 64, dtype, mask="causal", backward=True)
    for Sq, length in ((1, 1), (1, 3), (40, 67)):
        q, k, w = draw(v, B=2, H=1, Hk=1, Sq=Sq + 8, Skv=length + 60)
        d_o, d_lse = torch.randn(q.shape).to(q.dtype), torch.randn(2, 1, Sq)
        q, d_o, k, w = q[:, :Sq], d_o[:, :Sq], k[:, :length], w[:, :length]
        want = gradients(v, q.clone(), k.clone(), w.clone(), d_o.clone(), d_lse)
        for tensor, end in ((q, Sq), (d_o, Sq), (k, length), (w, length)):
            whole = tensor.as_strided((2, tensor._base.shape[1], 1, 64), tensor.stride())  # type: ignore[union-attr]
            whole[:, end:] = bad
        got = gradients(v, q, k, w, d_o, d_lse)
        assert all(torch.equal(got[name], want[name]) for name in want)
