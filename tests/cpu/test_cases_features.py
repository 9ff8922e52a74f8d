"""Features, from faults reported to attention libraries (windows, softcap, ALiBi, the base of lse)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from calls import call, draw, judge, merge


def seen(kernel, q_len, kv_len):
    """What the mask admits, [q_len, kv_len]: with q = k = 0 and one-hot values the output prints it."""
    q, k = torch.zeros(1, q_len, 1, 16), torch.zeros(1, kv_len, 1, 16)
    o = call(kernel, q, k, torch.eye(kv_len, 16)[None, :, None])["o"][0, :, 0, :kv_len]
    assert torch.equal(o.sum(-1).round(), (o > 0).any(-1).float())
    return o > 0


def window(length, left, right):
    i, j = torch.arange(length)[:, None], torch.arange(length)
    return ((left < 0) | (i - j <= left)) & ((right < 0) | (j - i <= right))


def test_a_window_of_two_to_the_left_sees_three_keys(cases):
    want = [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]]
    assert [row.nonzero().flatten().tolist() for row in seen(cases.window_2_0, 5, 5)] == want


@pytest.mark.parametrize("name", ["window_4_0", "window_5_0", "window_any_0"])
def test_a_window_as_long_as_the_sequence_is_causal(cases, name):
    q, k, v = draw(cases.causal_d16, Sq=5, Skv=5)
    got, want = (call(kernel, q, k, v) for kernel in (getattr(cases, name), cases.causal_d16))
    torch.testing.assert_close(got["o"], want["o"])
    torch.testing.assert_close(got["lse"], want["lse"])


@pytest.mark.parametrize(
    "name, left, right",
    [
        ("window_any_0", -1, 0),
        ("window_none_0", -1, 0),
        ("window_0_any", 0, -1),
        ("window_0_0", 0, 0),
        ("window_2_any", 2, -1),
        ("window_any_2", -1, 2),
        ("window_2_0", 2, 0),
        ("causal_window_2_any", 2, 0),
        ("causal_window_any_2", -1, 0),
        ("causal_window_0_any", 0, 0),
    ],
)
def test_one_sided_windows(cases, name, left, right):
    assert torch.equal(seen(getattr(cases, name), 6, 6), window(6, left, right))


@pytest.mark.parametrize("tile", [48, 64, 128])
def test_decoding_in_a_window_starts_at_the_right_tile(cases, tile):
    kernel = getattr(cases, f"long_window_kv{tile}")
    v = torch.arange(256.0)[None, :, None, None].expand(1, 256, 1, 16)
    got = call(kernel, torch.zeros(1, 1, 1, 16), torch.zeros(1, 256, 1, 16), v)
    torch.testing.assert_close(got["o"], torch.full((1, 1, 1, 16), 239.0))
    torch.testing.assert_close(got["lse"], torch.full((1, 1, 1), math.log(33)))


def test_softcap_caps(cases):
    q, k, v = torch.full((1, 1, 1, 64), 10.0), torch.full((1, 1, 1, 64), 1.25), torch.randn(1, 1, 1, 64)
    assert abs(float(call(cases.softcap15_d64, q, k, v)["lse"]) - 14.99995) < 1e-5


def test_softcap_s_derivative_counts(cases):
    source = np.random.default_rng(1)
    k, v, q = (torch.tensor(source.standard_normal((1, length, 1, 8)), dtype=torch.float32) for length in (5, 5, 1))
    got = judge(cases.softcap1_d8, q, k, v, d_o=torch.ones(1, 1, 1, 8))
    assert abs(float(got["dq"].abs().max()) - 0.19) < 0.005
    kernel = cases.softcap15_d128
    q, k, v = draw(kernel, B=2, Sq=128, Skv=217, size=8.0)
    judge(kernel, q, k, v, d_o=torch.randn_like(q))


def test_alibi_counts_from_the_last_key(cases):
    rows = torch.tensor([[-1.0, -0.5, 0.0, -0.5], [-1.5, -1.0, -0.5, 0.0]])
    q, k, v = torch.zeros(1, 2, 1, 16), torch.zeros(1, 4, 1, 16), torch.eye(4, 16)[None, :, None]
    for kernel, slopes in (
        (cases.alibi_d16, {"slope": torch.tensor([0.5])}),
        (cases.alibi_each_d16, {"each": torch.tensor([[0.5]])}),
    ):
        got = call(kernel, q, k, v, **slopes)
        torch.testing.assert_close(got["o"][0, :, 0, :4], rows.softmax(-1))
        torch.testing.assert_close(got["lse"][0, 0], rows.logsumexp(-1))


def test_any_number_of_heads_each_with_its_slope(cases):
    q, k, v = draw(cases.alibi_d16, B=2, H=5, Hk=5, Sq=9, Skv=33)
    d_o = torch.randn_like(q)
    slopes = torch.randn(5).abs()
    whole = judge(cases.alibi_d16, q, k, v, d_o=d_o, slope=slopes)
    # A shard of the heads, with its own slopes, computes the same.
    part = call(cases.alibi_d16, *(t[:, :, 2:4] for t in (q, k, v)), d_o=d_o[:, :, 2:4], slope=slopes[2:4])
    torch.testing.assert_close(part["o"], whole["o"][:, :, 2:4])
    torch.testing.assert_close(part["d_slope"], whole["d_slope"][2:4])
    judge(cases.alibi_each_d16, q, k, v, d_o=d_o, each=torch.randn(2, 5))


@pytest.mark.parametrize("slope", [torch.ones(2).half(), torch.ones(2).double(), torch.ones(2).int(), torch.ones(3)])
def test_slopes_of_another_dtype_or_shape_are_refused(cases, slope):
    q, k, v = draw(cases.alibi_d16)
    with pytest.raises((ValueError, TypeError), match="slope"):
        cases.alibi_d16(q, k, v, slope=slope)


def test_lse_is_in_base_e(cases):
    halves = [(torch.ones(1, 1, 1, 1) * n, torch.full((1, 1, 1), lse)) for n, lse in ((1.0, -3.0), (0.0, 2.0))]
    assert abs(float(merge(halves)[0]) - 0.00669) < 1e-5
    for name in ("full_d64_f32", "full_d64_bf16", "full_d64_f16"):
        kernel = getattr(cases, name)
        q, k, v = draw(kernel, Sq=9, Skv=40)
        whole = call(kernel, q, k, v)
        o, lse = merge([tuple(call(kernel, q, k[:, p], v[:, p]).values()) for p in (slice(0, 13), slice(13, 40))])
        torch.testing.assert_close(lse, whole["lse"].double(), rtol=1e-5, atol=1e-5)
        tolerance = 1e-5 if name.endswith("f32") else 2e-2
        torch.testing.assert_close(o, whole["o"].double(), rtol=tolerance, atol=tolerance)
