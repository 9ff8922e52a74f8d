"""The oracle and the baseline against numbers worked out by hand, and against torch where it has the same function."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from variants import variant

from fagen.runtime.baseline import baseline
from fagen.runtime.reference import mask_matrix, reference
from fagen.runtime.variant import Param

INF = math.inf


def one_hot(keys: int, dim: int = 16) -> tuple[Tensor, Tensor]:
    """k = 0 and v[j] one-hot at j, so that o shows the mask: [1, keys, 1, dim] each."""
    return torch.zeros(1, keys, 1, dim), torch.eye(keys, dim)[None, :, None]


def seen(mask: str, sq: int, skv: int, **fields: object) -> tuple[list[set[int]], Tensor]:
    """The keys each row sees, and lse, by q = k = 0; every weight is checked to be 1 / count."""
    v = variant(mask, **fields)
    k, values = one_hot(skv)
    o, lse = reference(v, torch.zeros(1, sq, 1, 16), k, values)
    sets = [set(row.nonzero().flatten().tolist()) for row in o[0, :, 0]]
    for row, keys in zip(o[0, :, 0], sets, strict=True):
        expected = torch.zeros(16).double()
        expected[list(keys)] = 1 / max(len(keys), 1)
        torch.testing.assert_close(row, expected, rtol=1e-12, atol=0)
    logs = [math.log(len(keys)) if keys else -INF for keys in sets]
    torch.testing.assert_close(lse[0, 0], torch.tensor(logs, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    return sets, lse


def up_to(*counts: int) -> list[set[int]]:
    return [set(range(count)) for count in counts]


# Masks: windows, alignment


def test_causal_is_aligned_at_the_bottom_right_or_top_left() -> None:
    assert seen("causal", 2, 5)[0] == up_to(4, 5)
    assert seen("causal", 5, 2)[0] == up_to(0, 0, 0, 1, 2)
    assert seen("causal", 2, 5, align="top_left")[0] == up_to(1, 2)
    assert seen("causal", 5, 2, align="top_left")[0] == up_to(1, 2, 2, 2, 2)


@pytest.mark.parametrize("sq, skv", [(2, 5), (5, 2)])
def test_dv_is_the_mask_transposed(sq: int, skv: int) -> None:
    k, v = one_hot(skv)
    v.requires_grad_()
    o, _ = reference(variant("causal"), torch.zeros(1, sq, 1, 16), k, v)
    o.sum().backward()
    first = skv - sq
    counts = [max(0, min(skv, first + i + 1)) for i in range(sq)]
    expected = [sum(1 / count for count in counts if j < count) for j in range(skv)]
    torch.testing.assert_close(v.grad[0, :, 0, 0], torch.tensor(expected), rtol=1e-6, atol=0)


def test_a_window_holds_left_plus_one_keys() -> None:
    assert seen("window(2, 0)", 5, 5)[0] == [{0}, {0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}]
    for window in ("window(4, 0)", "window(5, 0)", "window(-1, 0)", "causal"):
        assert seen(window, 5, 5)[0] == up_to(1, 2, 3, 4, 5)


@pytest.mark.parametrize("none", ["-1", "None"])
def test_one_sided_windows(none: str) -> None:
    def rows(left: float, right: float, causal: bool) -> list[set[int]]:
        return [{j for j in range(6) if i - left <= j <= i + right and (j <= i or not causal)} for i in range(6)]

    for left, right in ((None, 0), (0, None), (0, 0), (2, None), (None, 2), (2, 0), (None, None), (1, 3)):
        call = f"window({none if left is None else left}, {none if right is None else right})"
        bounds = (INF if left is None else left, INF if right is None else right)
        assert seen(call, 6, 6)[0] == rows(*bounds, causal=False)
        assert seen(f"causal and {call}", 6, 6)[0] == rows(*bounds, causal=True)


def test_window_given_at_run_time() -> None:
    v = variant("window(left, 0)", params={"left": Param("left", "i32", ())})
    for left, expected in ((-1, up_to(1, 2, 3, 4)), (0, [{0}, {1}, {2}, {3}]), (1, [{0}, {0, 1}, {1, 2}, {2, 3}])):
        mask = mask_matrix(v, 1, 1, 4, 4, {"left": torch.tensor(left)})
        assert [set(row.nonzero().flatten().tolist()) for row in mask.expand(1, 1, 4, 4)[0, 0]] == expected


# Softmax: empty rows, magnitudes


@pytest.mark.parametrize("how", ["causal", "mask", "bias", "both"])
@pytest.mark.parametrize("formula", [reference, baseline])
def test_rows_that_see_nothing(how: str, formula: object) -> None:
    params = {"on": Param("on", "bool", ("Sq", "Skv")), "bias": Param("bias", "f32", ("Sq", "Skv"), grad=True)}
    masks = {"causal": "causal", "mask": "on[i, j]", "bias": None, "both": "on[i, j]"}
    v = variant(
        masks[how], "s + bias[i, j]" if how in ("bias", "both") else None, params=params, head_dim=64, dtype="bf16"
    )
    torch.manual_seed(0)
    q, k, values = (torch.randn(1, s, 1, 64).bfloat16().requires_grad_() for s in (4, 2, 2))
    on = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 1]]).bool()
    bias = torch.zeros(4, 2)
    if how == "bias":
        bias = torch.where(on, 0.0, -INF)
    bias.requires_grad_()
    given = {"on": on, "bias": bias}
    o, lse = formula(v, q, k, values, params={p.name: given[p.name] for p in v.params})  # type: ignore[operator]
    assert (o[0, :2] == 0).all()
    assert (lse[0, 0, :2] == -INF).all()
    s = (q.double()[0, :, 0] @ k.double()[0, :, 0].T) / 8
    close = {"rtol": 2e-2, "atol": 2e-2} if formula is baseline else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(lse[0, 0, 2].double(), s[2, 0], **close)
    torch.testing.assert_close(lse[0, 0, 3].double(), s[3].logsumexp(0), **close)
    torch.testing.assert_close(o[0, 2, 0].double(), values.double()[0, 0, 0], **close)
    (o.float().sum() + torch.where(lse == -INF, 0, lse).sum()).backward()
    for tensor in (q, k, values):
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    assert (q.grad[0, :2] == 0).all()
    # dv of key 0: weight 1 in row 2, softmax in row 3.
    weight = s[3].softmax(0)
    tolerance = 2e-2
    torch.testing.assert_close(
        values.grad.double()[0, :, 0, 0], torch.stack([1 + weight[0], weight[1]]), rtol=tolerance, atol=tolerance
    )
    if bias.grad is not None:
        assert bias.grad.isfinite().all() and (bias.grad[:2] == 0).all()


@pytest.mark.parametrize("mask", [None, "q == kv"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_row_that_all_are_shut_out_of_is_zeros_whatever_they_hold(dtype: str, mask: str | None) -> None:
    v = variant(mask, head_dim=8, dtype=dtype)
    keys = 2 if mask else 1
    q, k, values = (torch.ones(1, s, 1, 8).requires_grad_() for s in (keys, keys, keys))
    with torch.no_grad():
        k[0, 0, 0, 0], values[0, 0, 0, 0], values[0, 0, 0, 1] = -INF, INF, math.nan
    o, lse = reference(v, q, k, values)
    (o.sum() + torch.where(lse == -INF, 0, lse).sum()).backward()
    assert (o[0, 0] == 0).all() and lse[0, 0, 0] == -INF
    for tensor in (q, k, values):
        assert tensor.grad is not None and (tensor.grad[0, 0] == 0).all()
    if mask:
        assert (o[0, 1] == 1).all()
    # With a sink the row's weights are numbers, 0, and what 0 times Inf is reaches it.
    o, lse = reference(variant(mask, head_dim=8, dtype=dtype, sink=True), q, k, values, sink=torch.zeros(1))
    assert o[0, 0, 0, :2].isnan().all() and lse[0, 0, 0] == 0


@pytest.mark.parametrize("formula", [reference, baseline])
def test_scores_far_below_any_sentinel(formula: object) -> None:
    q, k = torch.ones(1, 1, 1, 128), torch.full((1, 64, 1, 128), -1024.0)
    k[0, 0] = -1000
    v = torch.randn(1, 64, 1, 128)
    o, lse = formula(variant(head_dim=128, dtype="bf16"), q, k, v)  # type: ignore[operator]
    torch.testing.assert_close(o[0, 0, 0].double(), v[0, 0, 0].double(), rtol=2**-8, atol=0)
    assert lse.item() == pytest.approx(-128000 / math.sqrt(128), abs=2e-3)

    q, k, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16)
    q[..., 0], k[0, 0, 0, 0] = -20000, 1
    v[0, :, 0, 0] = torch.tensor([1.0, 100.0])
    o, lse = formula(variant("j < 1", scale=1.0), q, k, v)  # type: ignore[operator]
    assert (o[0, 0, 0, 0].item(), lse.item()) == (1, -20000)


@pytest.mark.parametrize("formula", [reference, baseline])
def test_scores_past_float16(formula: object) -> None:
    q, k = (torch.full((1, s, 1, 64), 256.0).half().requires_grad_() for s in (1, 8))
    v = torch.randn(1, 8, 1, 64).half().requires_grad_()
    o, lse = formula(variant(head_dim=64, dtype="f16"), q, k, v)  # type: ignore[operator]
    torch.testing.assert_close(o[0, 0, 0].double(), v[0].double().mean(0)[0], rtol=2e-3, atol=1e-3)
    assert lse.item() == pytest.approx(524288 + math.log(8), abs=0.0625)
    (o.float().sum() + lse.sum()).backward()
    for tensor in (q, k, v):
        assert tensor.grad is not None and tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype, tensor_dtype", [("f32", torch.float32), ("bf16", torch.bfloat16)])
def test_a_row_of_the_lowest_float(dtype: str, tensor_dtype: torch.dtype) -> None:
    bias = torch.zeros(1, 1, 3, 3)
    bias[0, 0, 0] = torch.finfo(torch.float32).min
    v = variant(
        None,
        "s + bias[b, h, i, j]",
        params={"bias": Param("bias", "f32", ("B", "H", "Sq", "Skv"))},
        head_dim=64,
        dtype=dtype,
    )
    torch.manual_seed(0)
    q, k, values = (torch.randn(1, 3, 1, 64).mul(0.1).to(tensor_dtype) for _ in range(3))
    # In float32 the scores vanish in the rounding; in float64 they nearly do.
    for o, lse in (reference(v, q, k, values, params={"bias": bias}), baseline(v, q, k, values, params={"bias": bias})):
        assert o.isfinite().all() and lse.isfinite().all()
        torch.testing.assert_close(o[0, 0, 0].double(), values[0].double().mean(0)[0], rtol=2e-2, atol=1e-3)
        torch.testing.assert_close(lse[0, 0, 0].double(), bias[0, 0, 0, 0].double() + math.log(3))


@pytest.mark.parametrize("formula", [reference, baseline])
def test_the_smallest_float16(formula: object) -> None:
    v = torch.full((1, 1, 1, 16), 2.0**-24).half()
    o, _ = formula(variant(dtype="f16"), torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1, 16), v)  # type: ignore[operator]
    assert (o.double() == 2.0**-24).all()


@pytest.mark.parametrize("a", [-100, -30, 30, 100])
def test_moving_a_power_of_two_from_k_to_q_changes_nothing(a: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 7, 2, 16) for _ in range(3))
    w = variant("causal", "softcap(3)")
    for one, other in zip(reference(w, q, k, v), reference(w, q * 2.0**a, k * 2.0**-a, v), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-14, atol=0)


def test_magnitudes_up_to_1e11() -> None:
    q = torch.tensor([1e11, -1e11, 1e-11, 1.0]).reshape(1, 4, 1, 1).expand(1, 4, 1, 16)
    k = torch.tensor([1.0, 0.5, 0.0]).reshape(1, 3, 1, 1).expand(1, 3, 1, 16)
    o, lse = reference(variant(), q, k, k)
    assert o[0, 0, 0, 0] == 1 and o[0, 1, 0, 0] == 0 and abs(o[0, 2, 0, 0] - 0.5) < 1e-9
    torch.testing.assert_close(lse[0, 0, :2], torch.tensor([4e11, 0]).double(), rtol=1e-7, atol=0)


# Features


def test_softcap() -> None:
    q, k = torch.zeros(1, 1, 1, 64), torch.zeros(1, 1, 1, 64)
    q[..., 0], k[..., 0] = 800, 1  # s = 100
    assert reference(variant(None, "softcap(15)", head_dim=64), q, k, k)[1].item() == pytest.approx(14.99995, abs=5e-6)
    q, k = torch.full((1, 1, 1, 64), 10.0), torch.full((1, 1, 1, 64), 1.25)
    _, lse = reference(variant(None, "softcap(15)", head_dim=64), q, k, k)
    assert lse.item() == pytest.approx(15 * math.tanh(100 / 15), abs=1e-12)


@pytest.mark.parametrize("shape", [("H",), ("B", "H"), ()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int64])
def test_alibi(shape: tuple[str, ...], dtype: torch.dtype) -> None:
    slope = torch.full([{"B": 1, "H": 5}[extent] for extent in shape], 0.5).to(dtype)
    size = float(slope.flatten()[0])
    v = variant(None, "alibi(slope)", params={"slope": Param("slope", "f32", shape)})
    q, k = torch.zeros(1, 2, 5, 16), torch.zeros(1, 4, 5, 16)
    bias = torch.tensor([[-1, -0.5, 0, -0.5], [-1.5, -1, -0.5, 0]]).double() * size / 0.5
    o, lse = reference(v, q, k, torch.eye(4, 16)[None, :, None].expand(1, 4, 5, 16), params={"slope": slope})
    torch.testing.assert_close(lse, bias.logsumexp(1)[None, None].expand(1, 5, 2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(o[0, :, 3, :4], bias.softmax(1), rtol=1e-12, atol=1e-12)


def test_a_wrong_slope_is_refused() -> None:
    v = variant(None, "alibi(slope)", params={"slope": Param("slope", "f32", ("H",))})
    x = torch.zeros(1, 2, 5, 16)
    for slope in (torch.ones(4), torch.ones(1, 5), torch.ones(())):
        with pytest.raises(ValueError, match=r"slope: expected shape \[H\] with H 5, found"):
            reference(v, x, x, x, params={"slope": slope})
    with pytest.raises(TypeError, match="slope: expected numbers, found torch.bool"):
        reference(v, x, x, x, params={"slope": torch.ones(5).bool()})


def test_sink_is_one_more_logit_that_takes_weight_to_no_value() -> None:
    v = variant("causal", sink=True, scale=1.0)
    q, k = torch.zeros(1, 3, 2, 16), torch.zeros(1, 2, 2, 16)
    values = torch.ones(1, 2, 2, 16)
    sink = torch.tensor([math.log(3), -INF])
    o, lse = reference(v, q, k, values, sink=sink)
    # Rows see 0, 1 and 2 keys of weight 1 each, and head 0's sink weighs 3.
    torch.testing.assert_close(
        o[0, :, :, 0], torch.tensor([[0, 0], [1 / 4, 1], [2 / 5, 1]]).double(), rtol=1e-6, atol=0
    )
    expected = torch.tensor([[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]).double().log()
    torch.testing.assert_close(lse[0], expected, rtol=1e-6, atol=1e-12)


def test_sink_is_outside_score_and_scale() -> None:
    v = variant(None, "softcap(1)", sink=True, scale=100.0)
    x = torch.zeros(1, 1, 1, 16)
    _, lse = reference(v, x, x, x, sink=torch.tensor([7.0]))
    assert lse.item() == pytest.approx(math.log(1 + math.exp(7)))


def test_scale_of_the_variant_the_call_and_the_head_dim() -> None:
    q, k = torch.ones(1, 1, 1, 16), torch.ones(1, 1, 1, 16)
    assert reference(variant(), q, k, k)[1].item() == 4
    assert reference(variant(scale=0.5), q, k, k)[1].item() == 8
    assert reference(variant(scale=0.5), q, k, k, scale=0.25)[1].item() == 4
    assert reference(variant(scale=0.5), q, k, k, scale=0.0)[1].item() == 0


def test_grouped_heads_share_keys_in_order() -> None:
    q = torch.zeros(2, 3, 6, 16)
    v = torch.arange(2.0).reshape(1, 1, 2, 1).expand(2, 4, 2, 16)
    o, _ = reference(variant(), q, torch.zeros(2, 4, 2, 16), v)
    assert o[0, 0, :, 0].tolist() == [0, 0, 0, 1, 1, 1]
    w = variant(None, "s + 0.5 * hk + 0.0 * h")
    assert reference(w, q, torch.zeros(2, 4, 2, 16), v)[1][0, :, 0].tolist() == pytest.approx(
        [math.log(4)] * 3 + [math.log(4) + 0.5] * 3
    )


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [False, True])
def test_against_torch(layout: str, causal: bool) -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, h, s, d).double() for h, s, d in ((6, 9, 16), (2, 13, 16), (2, 13, 24)))
    bias = torch.zeros(9, 13).double()
    if causal:
        bias = bias.masked_fill(torch.arange(13) > torch.arange(9)[:, None] + 4, -INF)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=bias, enable_gqa=True)
    w = variant("causal" if causal else None, value_dim=24, layout=layout)
    if layout == "bshd":
        q, k, v, expected = (x.transpose(1, 2) for x in (q, k, v, expected))
    torch.testing.assert_close(reference(w, q, k, v)[0], expected, rtol=1e-12, atol=1e-12)


def test_any_strides_and_offsets() -> None:
    torch.manual_seed(2)
    w = variant("causal")
    fused = torch.randn(2, 9, 3, 6, 40).double()
    forms = {
        "slices of one tensor": [fused[:, :, n, :, 3:19] for n in range(3)],
        "every second element": [fused[:, :, n, :, 1:33:2] for n in range(3)],
        "heads first": [torch.randn(2, 6, 9, 16).double().transpose(1, 2) for _ in range(3)],
        "sequence first": [torch.randn(9, 2, 6, 16).double().transpose(0, 1) for _ in range(3)],
        "dims first": [torch.randn(2, 9, 16, 6).double().transpose(2, 3) for _ in range(3)],
        "broadcast heads": [torch.randn(2, 9, 1, 16).double().expand(2, 9, 6, 16) for _ in range(3)],
        "backwards": [torch.randn(2, 9, 6, 16).double().flip(1) for _ in range(3)],
    }
    for name, views in forms.items():
        for one, other in zip(reference(w, *views), reference(w, *(x.contiguous() for x in views)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13, msg=name)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (2, 0, 0), (0, 0, 0)])
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize("formula", [reference, baseline])
def test_sizes_of_zero(sizes: tuple[int, int, int], mask: str | None, formula: object) -> None:
    batch, sq, skv = sizes
    for sink in (False, True):
        v = variant(mask, "softcap(2)", sink=sink, value_dim=24)
        tensors = [
            torch.randn(batch, s, h, d).requires_grad_() for s, h, d in ((sq, 4, 16), (skv, 2, 16), (skv, 2, 24))
        ]
        weights = torch.tensor([0.0, 1.0, 2.0, 3.0]) if sink else None
        o, lse = formula(v, *tensors, sink=weights)  # type: ignore[operator]
        assert o.shape == (batch, sq, 4, 24) and lse.shape == (batch, 4, sq)
        if skv == 0:
            assert (o == 0).all()
            expected = torch.full_like(lse, -INF) if weights is None else weights[None, :, None].expand_as(lse)
            assert torch.equal(lse.float(), expected.float())
        (o.sum() + lse.exp().sum()).backward()
        for tensor in tensors:
            assert tensor.grad is not None and (tensor.grad == 0).all()


def test_merging_parts_by_lse_is_the_whole() -> None:
    """Cut at random places, some parts empty."""
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, s, 1, 16).double() for s in (5, 20, 20))
    whole, whole_lse = reference(variant(), q, k, v)
    for cuts in ([0, 0, 7, 7, 20], [0, 20, 20], [0, 1, 19, 20], [0, 20]):
        parts = [reference(variant(), q, k[:, a:b], v[:, a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        lse = torch.stack([part[1] for part in parts]).logsumexp(0)
        o = sum(part[0] * (part[1] - lse).exp().transpose(1, 2)[..., None] for part in parts)
        torch.testing.assert_close(lse, whole_lse, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(o, whole, rtol=1e-12, atol=1e-12)
