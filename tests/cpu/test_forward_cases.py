"""Faults that attention libraries have had, forward: each a public report, with the answer it should have given."""

from __future__ import annotations

import math

import pytest
import torch
from forward_rule import check, draw
from kernels import DTYPES, kernel, variant

from fagen.runtime.reference import reference
from fagen.runtime.variant import Param, Tiles
from fagen.target import ISAS, native_isa

INF = math.inf
RUNNABLE = list(ISAS)[list(ISAS).index(native_isa()) :]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def printed_mask(name: str, Sq: int, Skv: int, **fields: object) -> torch.Tensor:
    """The mask a kernel applies: q = k = 0 and one-hot values print it, rows summing to 1."""
    v = variant(name, 16, "f32", value_dim=Skv, **fields)
    zero_q, zero_k = torch.zeros(1, Sq, 1, 16), torch.zeros(1, Skv, 1, 16)
    o, lse = kernel(v)(zero_q, zero_k, torch.eye(Skv)[None, :, None])
    admitted = o[0, :, 0] > 0
    count = admitted.sum(-1)
    assert torch.allclose(o[0, :, 0], admitted / count.clamp(min=1)[:, None])
    assert torch.allclose(lse[0, 0], count.float().log())
    return admitted


@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_rows(dtype: str) -> None:
    v = variant("empty_rows", 64, dtype, mask="causal")
    o, lse = check(v, *draw(v, B=1, H=1, Hk=1, Sq=4, Skv=2))
    assert (o[0, :2] == 0).all() and (lse[0, 0, :2] == -INF).all() and lse[0, 0, 2:].isfinite().all()
    bias = Param("bias", "f32", ("Sq", "Skv"))
    v = variant("bias_rows", 64, dtype, score="s + bias[i, j]", params=(bias,))
    o, lse = kernel(v)(
        *draw(v, B=1, H=1, Hk=1, Sq=3, Skv=300), params={"bias": torch.tensor([[0.0], [-INF], [0.0]]).expand(3, 300)}
    )
    assert (o[0, 1] == 0).all() and lse[0, 0, 1] == -INF and o.isfinite().all() and lse[0, 0, [0, 2]].isfinite().all()


def test_all_scores_very_low() -> None:
    v = variant("low", 128, "bf16")
    q, k = torch.ones(1, 1, 1, 128), torch.full((1, 64, 1, 128), -1024.0)
    k[0, 0] = -1000.0
    values = torch.randn(1, 64, 1, 128).bfloat16()
    o, lse = kernel(v)(q.bfloat16(), k.bfloat16(), values)
    assert torch.equal(o[0, 0], values[0, 0])
    assert math.isclose(lse.item(), -11313.708, rel_tol=1e-7)


def test_a_masked_key_never_wins() -> None:
    v = variant("masked_key", 16, "f32", scale=1.0, mask="kv < 1")
    q, k, w = (
        torch.zeros(1, 1, 1, 16),
        torch.zeros(1, 2, 1, 16),
        torch.tensor([1.0, 100.0]).view(1, 2, 1, 1).expand(1, 2, 1, 16),
    )
    q[..., 0], k[0, 0, 0, 0] = -20000.0, 1.0
    o, lse = kernel(v)(q, k, w)
    assert (o == 1).all() and lse.item() == -20000.0


def test_products_beyond_f16() -> None:
    v = variant("large_f16", 64, "f16")
    q, k = torch.full((1, 1, 1, 64), 256.0).half(), torch.full((1, 8, 1, 64), 256.0).half()
    w = torch.randn(1, 8, 1, 64).half()
    o, lse = kernel(v)(q, k, w)
    assert torch.allclose(o[0, 0].double(), w.double().mean(1)[0], rtol=2**-11, atol=1e-7)
    assert abs(lse.item() - 524290.0794) <= 0.0625


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_scores_shifted_by_the_least_float(dtype: str) -> None:
    bias = Param("bias", "f32", ("Sq", "Skv"))
    v = variant("least_float", 64, dtype, score="s + bias[i, j]", params=(bias,))
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=3, Skv=3, spread=0.1)
    shift = torch.zeros(3, 3)
    shift[0] = torch.finfo(torch.float32).min
    o, lse = kernel(v)(q, k, w, params={"bias": shift})
    assert torch.allclose(o[0, 0, 0].double(), w.double().mean(1)[0, 0], rtol=2**-8, atol=1e-6)
    assert lse[0, 0, 0].isfinite() and o.isfinite().all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_scores_of_any_magnitude(dtype: str) -> None:
    """Logits from -1e11 to 1e11, and powers of two moved between q and k."""
    v = variant("magnitudes", 8, dtype, scale=1.0)
    for magnitude in (1e3, 1e7, 1e11):
        q, k, w = draw(v, B=1, H=1, Hk=1, Sq=64, Skv=100)
        logits = torch.linspace(-magnitude, magnitude, 100)
        q.zero_(), k.zero_()
        q[..., 0], k[0, :, 0, 0] = 1.0, logits.to(k.dtype)
        check(v, q, k, w)
    q, k, w = draw(v, Sq=40, Skv=50)
    want, lse = kernel(v)(q, k, w)
    for power in (-60, -20, 20, 60):
        o, lse_again = kernel(v)(q * 2.0**power, k * 2.0**-power, w)
        assert torch.equal(o, want) and torch.equal(lse, lse_again)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("Sq", [1, 300])
def test_values_near_the_largest_float(dtype: str, Sq: int) -> None:
    """Their weighted mean is finite though their sum is not."""
    v = variant("large_values", 16, dtype, mask="causal")
    q, k, _ = draw(v, B=1, H=2, Hk=1, Sq=Sq, Skv=300)
    largest = torch.finfo(DTYPES[dtype]).max
    w = (torch.rand(1, 300, 1, 16) * 0.5 + 0.49).mul(largest).to(DTYPES[dtype])
    o, lse = kernel(v)(q, k, w)
    want, want_lse = reference(v, q, k, w)
    assert torch.allclose(o.double(), want, rtol=2**-19 if dtype == "f32" else 2**-8, atol=0)
    assert torch.allclose(lse.double(), want_lse) and (o > 0.4 * largest).all()


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_the_largest_number_is_that(dtype: str, isa: str) -> None:
    """However weights, their sum and the division are rounded: never infinite, and an infinite value still is."""
    v = variant("largest_value", 16, dtype, tiles=Tiles(q=18, kv=64))
    largest = torch.finfo(DTYPES[dtype]).max
    q, k = torch.zeros(1, 400, 1, 16), torch.zeros(1, 100, 1, 16)
    q[..., 0], k[..., 0] = torch.linspace(4.0, 0.0, 400)[:, None], (torch.arange(100) % 8 == 0)[:, None]
    w = torch.full((1, 100, 1, 16), largest, dtype=DTYPES[dtype])
    w[..., ::2] *= -1.0
    for keys in (1, 3, 100):
        o, _ = kernel(v, isa)(q.to(w.dtype), k[:, :keys].to(w.dtype), w[:, :keys])
        assert torch.allclose(o.double(), w[:, :1].double().expand(o.shape), rtol=2**-18 if dtype == "f32" else 2**-7)
        assert o.isfinite().all()
    w[:, 50, :, :2] = torch.tensor([-INF, INF])
    o, _ = kernel(v, isa)(q.to(w.dtype), k.to(w.dtype), w)
    assert (o[..., 0] == -INF).all() and (o[..., 1] == INF).all() and o[..., 2:].isfinite().all()


def test_denormals_survive() -> None:
    v = variant("denormal", 16, "f16")
    q, k, _ = draw(v, B=1, H=1, Hk=1, Sq=3, Skv=1)
    o, _ = kernel(v)(q, k, torch.full((1, 1, 1, 16), 2.0**-24).half())
    assert (o == 2.0**-24).all()
    v = variant("denormal_f32", 16, "f32")
    o, _ = kernel(v)(q.float(), k.float(), torch.full((1, 1, 1, 16), 2.0**-149))
    assert (o == 2.0**-149).all()


@pytest.mark.parametrize(("align", "five_two"), [("bottom_right", 3), ("top_left", 0)])
def test_which_diagonal(align: str, five_two: int) -> None:
    wide = printed_mask("diagonal_wide", 2, 5, mask="causal", align=align)
    shift = 3 if align == "bottom_right" else 0
    assert torch.equal(wide, torch.arange(5) <= torch.arange(2)[:, None] + shift)
    tall = printed_mask("diagonal_tall", 5, 2, mask="causal", align=align)
    assert torch.equal(tall, torch.arange(2) <= torch.arange(5)[:, None] - five_two)


def test_windows_are_inclusive() -> None:
    i, j = torch.arange(6)[:, None], torch.arange(6)
    for left, right in ((2, 0), (6, 0), (-1, 0), (0, -1), (0, 0), (-1, 2)):
        want = torch.ones(6, 6, dtype=torch.bool)
        if left >= 0:
            want &= j >= i - left
        if right >= 0:
            want &= j <= i + right
        assert torch.equal(printed_mask("window", 6, 6, mask=f"window({left}, {right})"), want), (left, right)


@pytest.mark.parametrize("tile", [48, 64, 128])
def test_decoding_with_a_window(tile: int) -> None:
    v = variant("window_decode", 16, "f32", value_dim=1, mask="window(32, 0)", tiles=Tiles(kv=tile))
    o, _ = kernel(v)(torch.zeros(1, 1, 1, 16), torch.randn(1, 256, 1, 16), torch.arange(256.0).view(1, 256, 1, 1))
    assert o.item() == 239.0


def test_softcap_caps() -> None:
    v = variant("softcap_one", 64, "f32", score="softcap(15)", scale=1.0)
    q, k = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 64)
    q[..., 0], k[..., 0] = 100.0, 1.0
    _, lse = kernel(v)(q, k, k)
    assert math.isclose(lse.item(), 15 * math.tanh(100 / 15), rel_tol=1e-6)


def test_alibi_is_in_the_lse() -> None:
    slope = Param("slope", "f32", ("H",))
    v = variant("alibi_two", 16, "f32", score="alibi(slope)", params=(slope,))
    _, lse = kernel(v)(
        torch.zeros(1, 2, 1, 16),
        torch.zeros(1, 4, 1, 16),
        torch.zeros(1, 4, 1, 16),
        params={"slope": torch.tensor([0.5])},
    )
    bias = torch.tensor([[-1, -0.5, 0, -0.5], [-1.5, -1, -0.5, 0]])
    assert torch.allclose(lse[0, 0], bias.logsumexp(-1))


def test_parts_merge_by_lse() -> None:
    """Keys cut into parts, some of them empty, give what all give at once."""
    v = variant("merge", 32, "f32")
    q, k, w = draw(v, Sq=10, Skv=90)
    whole, whole_lse = kernel(v)(q, k, w)
    cuts = [0, 0, 17, 17, 64, 90]
    o, lse = torch.zeros_like(whole), torch.full_like(whole_lse, -INF)
    for first, last in zip(cuts, cuts[1:], strict=False):
        part, part_lse = kernel(v)(q, k[:, first:last], w[:, first:last])
        both = torch.logaddexp(lse, part_lse)
        ours, theirs = ((x - both).nan_to_num(-INF).exp().transpose(1, 2)[..., None] for x in (lse, part_lse))
        o, lse = o * ours + part * theirs, both
    assert torch.allclose(o, whole, atol=1e-6) and torch.allclose(lse, whole_lse, atol=1e-6)


def test_sinks() -> None:
    v = variant("sinks", 32, "f32", sink=True, mask="causal")
    q, k, w = draw(v, B=1, H=4, Hk=2, Sq=30, Skv=20)
    sink = torch.tensor([-INF, 0.0, 50.0, 1e9])
    o, lse = check(v, q, k, w, sink=sink)
    assert torch.equal(lse[0, :, :10], sink[:, None].expand(4, 10))  # rows without keys
    assert (o[0, :10] == 0).all() and (o[0, :, 3] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [0.0, INF, -INF, math.nan])
def test_sinks_that_are_no_numbers(dtype: str, bad: float) -> None:
    """Inf takes all weight, NaN all rows of its head; rows that see no key among them, and no keys at all."""
    v = variant("no_sinks", 16, dtype, sink=True, mask="causal", tiles=Tiles(q=18, kv=64))
    q, k, w = draw(v, B=1, H=3, Hk=1, Sq=90, Skv=70)
    w[0, 40, 0, 5] = bad
    sink = torch.tensor([INF, math.nan, 0.0])
    o, lse = check(v, q, k, w, sink=sink)
    assert (lse[0, 0] == INF).all() and lse[0, 1].isnan().all() and lse[0, 2].isfinite().all()
    untouched = o[0, :, 0].clone()
    untouched[60:, 5] = 0.0  # those that see the value that is no number
    assert (untouched == 0).all() and o[0, :, 1].isnan().all()
    assert bool(o[0, 60:, 0, 5].isnan().all()) == (bad != 0.0)
    o, lse = check(v, q, k[:, :0], w[:, :0], sink=sink)
    assert (o[0, :, [0, 2]] == 0).all() and o[0, :, 1].isnan().all() and (lse[0, 0] == INF).all()
