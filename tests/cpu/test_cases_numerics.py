"""Numerics, from faults reported to attention libraries (empty rows, range and rounding, masked NaN)."""

from __future__ import annotations

import math

import pytest
import torch
from calls import call, draw, judge

INF = math.inf


def grads(kernel, q):
    return torch.randn(*q.shape[:3], kernel.variant.value_dim).to(q.dtype)


def assert_empty(got, rows):
    """Rows without a key, of [B, S, H, D] outputs: zeros, lse -inf, no gradient."""
    assert (got["o"][:, rows] == 0).all()
    assert (got["lse"][:, :, rows] == -INF).all()
    if "dq" in got:
        assert (got["dq"][:, rows] == 0).all()
    assert not any(tensor.isnan().any() for tensor in got.values())


def test_causal_rows_without_a_key(cases):
    kernel = cases.causal_d64_bf16
    q, k, v = draw(kernel, H=1, Hk=1, Sq=4, Skv=2)
    assert_empty(judge(kernel, q, k, v, d_o=grads(kernel, q)), slice(0, 2))


def test_masked_rows(cases):
    kernel = cases.masked_d16_bf16
    q, k, v = draw(kernel, H=1, Hk=1, Sq=4, Skv=6)
    ok = torch.rand(1, 4, 6) < 0.5
    ok[:, 1::2], ok[:, 0::2, 0] = False, True
    assert_empty(judge(kernel, q, k, v, d_o=grads(kernel, q), ok=ok), slice(1, None, 2))


def test_a_bias_row_of_minus_infinity(cases):
    kernel = cases.biased_d64_bf16
    q, k, v = draw(kernel, H=1, Hk=1, Sq=4, Skv=6)
    bias = torch.randn(1, 1, 4, 6)
    bias[:, :, 1] = -INF
    got = call(kernel, q, k, v, d_o=grads(kernel, q), bias=bias)
    assert_empty(got, slice(1, 2))
    rest = [0, 2, 3]
    alone = judge(kernel, q[:, rest], k, v, bias=bias[:, :, rest])
    torch.testing.assert_close(got["o"][:, rest], alone["o"], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(got["lse"][:, :, rest], alone["lse"])


def test_all_logits_far_below_any_stand_in_for_minus_infinity(cases):
    kernel = cases.full_d128_bf16
    q, k = torch.ones(1, 1, 1, 128).bfloat16(), torch.full((1, 64, 1, 128), -1024.0).bfloat16()
    k[:, 0] = -1000.0
    v = torch.randn(1, 64, 1, 128).bfloat16()
    got = call(kernel, q, k, v)
    assert torch.equal(got["o"], v[:, :1])
    assert abs(float(got["lse"]) - -11313.708) < 1e-2


def test_a_masked_key_does_not_win_over_a_very_low_one(cases):
    kernel = cases.masked_d16_f32
    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16)
    q[..., 0], k[:, 0, :, 0], v[:, 0], v[:, 1] = -20000.0, 1.0, 1.0, 100.0
    got = call(kernel, q, k, v, scale=1.0, ok=torch.tensor([[[True, False]]]))
    assert (got["o"] == 1.0).all()
    assert float(got["lse"]) == -20000.0


def test_scores_beyond_half_precision_before_they_are_scaled(cases):
    kernel = cases.full_d64_f16
    q, k = torch.full((1, 1, 1, 64), 256.0).half(), torch.full((1, 8, 1, 64), 256.0).half()
    v = torch.randn(1, 8, 1, 64).half()
    got = judge(kernel, q, k, v, d_o=torch.randn(1, 1, 1, 64).half())
    assert abs(float(got["lse"]) - 524290.08) <= 0.0625
    torch.testing.assert_close(got["o"], v.double().mean(1, keepdim=True).half(), rtol=2e-3, atol=1e-3)
    assert all(tensor.isfinite().all() for tensor in got.values())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bias_of_the_lowest_finite_number_is_a_bias(cases, dtype):
    kernel = getattr(cases, f"biased_d64_{dtype}")
    q, k, v = draw(kernel, H=1, Hk=1, Sq=3, Skv=3, size=0.1)
    bias = torch.zeros(1, 1, 3, 3)
    bias[:, :, 0] = torch.finfo(torch.float32).min
    got = judge(kernel, q, k, v, d_o=grads(kernel, q), bias=bias)
    mean = v.double().mean(1)[:, None]
    torch.testing.assert_close(got["o"][:, :1].double(), mean, rtol=1e-2, atol=1e-2)
    assert got["lse"].isfinite().all()


@pytest.mark.parametrize("poison", [math.nan, INF, -INF, 1e4])
def test_what_lies_past_a_sequence_s_end_has_no_influence(cases, poison):
    kernel = cases.cached_d64_f16
    q, k, v = draw(kernel, B=2, H=1, Hk=1, Sq=1, Skv=3)
    lens, d_o = torch.tensor([1, 3], dtype=torch.int32), torch.randn(2, 1, 1, 64).half()
    k[0, 1:], v[0, 1:] = 0.0, 0.0
    clean = judge(kernel, q, k, v, d_o=d_o, len=lens)
    k[0, 1:], v[0, 1:] = poison, poison
    got = call(kernel, q, k, v, d_o=d_o, len=lens)
    for name, tensor in clean.items():
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("poison", [math.nan, INF, 1e4])
@pytest.mark.parametrize("name", ["topleft_d16", "window_0_0", "small_tiles_d16"])
def test_keys_that_a_mask_hides_have_no_influence(cases, name, poison):
    kernel = getattr(cases, name)
    sizes = {"topleft_d16": (20, 70), "window_0_0": (3, 40), "small_tiles_d16": (20, 130)}[name]
    q, k, v = draw(kernel, Sq=sizes[0], Skv=sizes[1])
    hidden = slice(sizes[0], None) if name == "topleft_d16" else slice(0, sizes[1] - sizes[0] - 40)
    if name == "window_0_0":
        hidden = slice(0, sizes[1] - sizes[0])
    d_o = torch.randn_like(q) if kernel.variant.backward else None
    k[:, hidden], v[:, hidden] = 0.0, 0.0
    clean = judge(kernel, q, k, v, d_o=d_o)
    k[:, hidden], v[:, hidden] = poison, poison
    got = call(kernel, q, k, v, d_o=d_o)
    for output, tensor in clean.items():
        assert torch.equal(got[output], tensor), output


def test_the_gradient_of_a_single_key_is_exact(cases):
    kernel = cases.full_d16_f16
    for seed in range(20):
        torch.manual_seed(seed)
        q, k, v = ((torch.randn(1, 1, 1, 16) * 3).half() for _ in range(3))
        got = call(kernel, q, k, v, d_o=torch.ones(1, 1, 1, 16).half())
        assert (got["dq"] == 0).all() and (got["dk"] == 0).all()
        assert (got["dv"] == 1).all()


@pytest.mark.parametrize("align", ["bottom_right", "top_left"])
@pytest.mark.parametrize("rows", [76, 34, 146])
def test_many_rows_that_see_one_key(cases, align, rows):
    kernel = cases.causal_d32_f16 if align == "bottom_right" else cases.topleft_d32_f16
    q, k, v = ((torch.randn(1, length, 1, 32) * 3).half() for length in (rows, 1, 1))
    got = call(kernel, q, k, v, d_o=torch.ones(1, rows, 1, 32).half())
    assert (got["dq"] == 0).all() and (got["dk"] == 0).all()
    assert (got["dv"] == (1 if align == "bottom_right" else rows)).all()


def test_the_smallest_half_precision_number_comes_through(cases):
    kernel = cases.full_d16_f16
    q, k, _ = draw(kernel, H=1, Hk=1, Sq=1, Skv=1)
    v = torch.full((1, 1, 1, 16), 2.0**-24).half()
    assert (call(kernel, q, k, v)["o"] == 2.0**-24).all()
