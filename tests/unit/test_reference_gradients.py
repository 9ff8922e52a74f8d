"""The oracle's gradients: against finite differences, at kinks, where nothing is read, and beside NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from variants import variant

from fagen.runtime.baseline import baseline
from fagen.runtime.reference import mask_matrix, reference
from fagen.runtime.variant import Param

NAN, INF = math.nan, math.inf
PARAMS = {
    param.name: param
    for param in (
        Param("t", "f32", (), grad=True),
        Param("slope", "f32", ("H",), grad=True),
        Param("key", "f32", ("Hk",), grad=True),
        Param("two", "f32", ("B", "H"), grad=True),
        Param("f", "f32", ("B", "H", "n"), grad=True),
        Param("rel", "f32", ("H", "n"), grad=True),
        Param("bias", "f32", ("B", "H", "Sq", "Skv"), grad=True),
        Param("at", "i32", ("n",)),
        Param("on", "bool", ("Sq", "Skv")),
    )
}
B, H, HK, SQ, SKV = 2, 4, 2, 3, 4
SIZES = {"B": B, "H": H, "Hk": HK, "Sq": SQ, "Skv": SKV, "n": 8}


def tensors(*, dim: int = 4, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, SQ, H, dim), (B, SKV, HK, dim), (B, SKV, HK, dim))
    return [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


def inputs(w: object, seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for param in w.params:  # type: ignore[attr-defined]
        shape = [SIZES[extent] for extent in param.shape]
        if param.dtype == "bool":
            found[param.name] = torch.rand(shape, generator=generator) < 0.6
        elif param.dtype == "i32":
            found[param.name] = torch.randint(0, 4, shape, generator=generator).int()
        else:
            found[param.name] = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    return found


SCORES = [
    "s + t",
    "s - slope[h] * abs(q - kv)",
    "s * key[hk] + 1",
    "s + two[b, h] * (q - kv)",
    "s + f[b, h, q] - f[b, h, kv]",
    "s + rel[h, q - kv + kv_len]",
    "s + bias[b, h, i, j]",
    "s + bias[b, h, j, i]",
    "s + rel[h, at[kv]] * f[b, h, at[q] + 1]",
    "softcap(0.7)",
    "t * tanh(s / t)",
    "exp(s) - exp2(s) + sigmoid(s) * softplus(s) + sin(s) * cos(s)",
    "log(1.5 + sigmoid(s)) + log2(3 + sin(s)) + sqrt(2 + cos(s))",
    "s ** 2 + (1.5 + sin(s)) ** 3.5 + 2.0 ** s + (2 + sin(t)) ** s",
    "1 / (3 + s ** 2) + s / (2 + t ** 2)",
    "min(s, t) + max(s, t, slope[h]) + abs(s)",
    "s if s > t else t * s",
    "s + log(t * t) if on[i, j] else s - t",
]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("mask", [None, "causal"])
def test_against_finite_differences(score: str, mask: str | None) -> None:
    w = variant(mask, score, params=PARAMS, head_dim=4, sink=True)
    params = inputs(w)
    learned = [name for name, tensor in params.items() if tensor.requires_grad]
    sink = torch.randn(H).double().requires_grad_()

    def call(q: Tensor, k: Tensor, v: Tensor, sink: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        given = {**params, **dict(zip(learned, values, strict=True))}
        return reference(w, q, k, v, sink=sink, params=given)

    arguments = (*tensors(), sink, *(params[name] for name in learned))
    assert gradcheck(call, arguments, fast_mode=True, check_forward_ad=True)


def test_second_derivatives() -> None:
    w = variant("causal", "softcap(2) + two[b, h] * abs(q - kv)", params=PARAMS, head_dim=4)
    params = inputs(w)

    def call(q: Tensor, k: Tensor, v: Tensor, two: Tensor) -> tuple[Tensor, ...]:
        o, lse = reference(w, q, k, v, params={"two": two})
        return o, lse

    assert gradgradcheck(call, (*tensors(), params["two"]), fast_mode=True)


def test_func_transforms() -> None:
    w = variant("causal", "s - slope[h] * abs(q - kv)", params=PARAMS, head_dim=4)
    q, k, v = (x.detach() for x in tensors())
    slope = inputs(w)["slope"].detach()

    def loss(q: Tensor, slope: Tensor) -> Tensor:
        o, lse = reference(w, q, k, v, params={"slope": slope})
        return o.sin().sum() + lse.sum()

    q.requires_grad_()
    slope.requires_grad_()
    expected = torch.autograd.grad(loss(q, slope), (q, slope))
    found = torch.func.grad(loss, argnums=(0, 1))(q.detach(), slope.detach())
    for one, other in zip(found, expected, strict=True):
        assert one.abs().sum() > 0
        torch.testing.assert_close(one, other)


def one_pair(score: str, s: float, params: dict[str, Tensor] | None = None, mask: str | None = None) -> Tensor:
    """d lse / d s of one query and one key with score ``s``."""
    q = torch.full((1, 1, 1, 1), s, dtype=torch.float64, requires_grad=True)
    k = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    w = variant(mask, score, params=PARAMS, head_dim=1, scale=1.0)
    _, lse = reference(w, q, k, k, params=params or {})
    lse.sum().backward()
    assert q.grad is not None
    return q.grad.flatten()[0]


KINKS = [
    ("abs(s)", 0.0, 0),
    ("abs(s)", -2.0, -1),
    ("min(s, 0)", 0.0, 1),
    ("min(0, s)", 0.0, 0),
    ("max(s, 0)", 0.0, 1),
    ("max(0, s)", 0.0, 0),
    ("min(s, 2 * s)", 0.0, 1),
    ("min(2 * s, s)", 0.0, 2),
    ("max(s, 3 * s, s)", 0.0, 1),
    ("max(s, s)", 5.0, 1),
    ("floor(s)", 0.5, 0),
    ("s // 2.0", 3.0, 0),
    ("s % 2.0", 3.0, 0),
    ("s + s % 2.0", 3.0, 1),
    ("sigmoid(s) * 4", 0.0, 1),
    ("softplus(s)", 50.0, 1),
    ("s if s > 0 else 2 * s", 0.0, 2),
    ("s if s >= 0 else 2 * s", 0.0, 1),
    ("tanh(s)", 0.0, 1),
    ("s ** 2", 0.0, 0),
    ("s ** 1", 0.0, 1),
    ("s ** 0 + s", 0.0, 1),
]


@pytest.mark.parametrize("score, s, slope", KINKS)
def test_kinks(score: str, s: float, slope: float) -> None:
    assert one_pair(score, s).item() == slope


@pytest.mark.parametrize("s", [-1000.0, -100.0, 100.0, 1000.0])
@pytest.mark.parametrize("score", ["sigmoid(s)", "softplus(s)", "tanh(s)"])
def test_saturated_functions_have_finite_gradients(score: str, s: float) -> None:
    expected = 1 if score == "softplus(s)" and s > 0 else 0
    assert one_pair(score, s).item() == pytest.approx(expected, abs=1e-30)


NOT_TAKEN = [
    ("s if s < 1 else log(s - 1)", 0.5, 1),
    ("log(s) if s > 0 else s", -1.0, 1),
    ("log(s) if s > 0 else s", 0.0, 1),
    ("sqrt(s) if s > 0 else s * 3", 0.0, 3),
    ("(1 / s if s != 0 else s)", 0.0, 1),
    ("1 / s * s if s != 0 else s", 0.0, 1),
    ("max(log(s), s)", 0.0, 1),
    ("min(1 / s, s)", 0.0, 1),
    ("max(sqrt(s), 2 * s, 1 + s)", 0.0, 1),
    ("(log(s) if s > 1 else s) if s > 0 else 5 * s", 0.0, 5),
    ("(log(s) if s < 0 else s) if s > -1 else 5 * s", 0.0, 1),
    ("exp(s) if s < 100 else s", 1000.0, 1),
    ("s ** 0.5 if s > 0 else s", 0.0, 1),
    ("s if true else log(s)", 0.0, 1),
    ("s + (0 if s == 0 else 1 / s)", 0.0, 1),
]


@pytest.mark.parametrize("score, s, slope", NOT_TAKEN)
def test_what_is_not_taken_has_no_gradient(score: str, s: float, slope: float) -> None:
    assert one_pair(score, s).item() == slope


def test_what_is_not_taken_has_no_gradient_in_params() -> None:
    w = variant(None, "s + (log(f[b, h, kv]) if f[b, h, kv] > 0 else 0)", params=PARAMS, head_dim=4)
    f = torch.tensor([2.0, 0.0, -1.0, NAN, 1.0, 1.0, 1.0, 1.0]).double().expand(B, H, 8).clone().requires_grad_()
    o, lse = reference(w, *tensors(), params={"f": f})
    (o.sum() + lse.sum()).backward()
    assert f.grad is not None and f.grad.isfinite().all()
    assert (f.grad[..., 0] != 0).all() and (f.grad[..., 1:] == 0).all()


def test_a_masked_pair_has_no_gradient_through_its_score() -> None:
    """The score of a pair the mask excludes may be NaN with NaN derivatives."""
    w = variant("f[b, h, kv] > 0", "s + log(f[b, h, kv])", params=PARAMS, head_dim=4)
    f = torch.tensor([2.0, 0.0, -1.0, 3.0]).double().expand(B, H, 4).clone().requires_grad_()
    x = tensors()
    o, lse = reference(w, *x, params={"f": f})
    (o.sum() + lse.sum()).backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in [f, *x])
    assert (f.grad[..., 1:3] == 0).all() and (f.grad[..., [0, 3]] != 0).all()  # type: ignore[index]


def test_reads_outside_an_extent_give_zero_and_take_no_gradient() -> None:
    w = variant(None, "s + rel[h, kv - 1] + rel[h, kv + 2]", params=PARAMS, head_dim=4, scale=0.0)
    rel = torch.tensor([1.0, 2.0, 4.0]).double().expand(H, 3).clone().requires_grad_()
    x = tensors()
    _, lse = reference(w, *x, params={"rel": rel})
    # kv = 0..3 reads rel[-1] + rel[2], rel[0] + rel[3], rel[1] + rel[4], rel[2] + rel[5].
    bias = torch.tensor([0 + 4.0, 1 + 0, 2 + 0, 4 + 0], dtype=torch.float64)
    torch.testing.assert_close(lse, bias.logsumexp(0).expand(B, H, SQ))
    lse.sum().backward()
    p = bias.softmax(0) * B * SQ
    assert rel.grad is not None
    torch.testing.assert_close(rel.grad, torch.stack([p[1], p[2], p[0] + p[3]]).expand(H, 3))

    masked = variant("on[i + 2, j - 1]", params=PARAMS, head_dim=4)
    on = torch.ones(SQ, SKV).bool()
    shown = mask_matrix(masked, B, H, SQ, SKV, {"on": on}).expand(B, H, SQ, SKV)[0, 0]
    assert shown.int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]

    empty = torch.zeros(H, 0).double().requires_grad_()
    _, lse = reference(w, *x, params={"rel": empty})
    lse.sum().backward()
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(SKV)))


def test_integer_division_by_zero_gives_zero() -> None:
    w = variant(None, "s + kv // (kv - 1) + 10 * (5 % (kv - 1))", head_dim=4, scale=0.0)
    _, lse = reference(w, *tensors())
    scores = [0 // -1 + 10 * (5 % -1), 0, 2 // 1 + 0, 3 // 2 + 10 * (5 % 2)]
    torch.testing.assert_close(lse, torch.tensor(scores).double().logsumexp(0).expand(B, H, SQ))


@pytest.mark.parametrize("score", ["1.0", "floor(s)", "slope[h] // 1.0", "s if on[i, j] and q < -9 else t % 2.0"])
def test_what_changes_nothing_has_a_gradient_of_zero(score: str) -> None:
    """Zero, rather than none at all."""
    w = variant(None, score, params=PARAMS, head_dim=4, sink=True)
    q, k, v = tensors()
    params, sink = inputs(w), torch.zeros(H).double().requires_grad_()
    _, lse = reference(w, q, k, v, sink=sink, params=params)
    lse.sum().backward()
    learned = [tensor for tensor in params.values() if tensor.requires_grad]
    for tensor in (q, k, v, *learned):
        assert tensor.grad is not None and (tensor.grad == 0).all()


def test_the_gradient_of_lse() -> None:
    q, k, v = tensors()
    w = variant("causal", head_dim=4, scale=0.3)
    o, lse = reference(w, q, k, v)
    lse.sum().backward()
    keys = k.detach().repeat_interleave(2, 2)
    s = 0.3 * torch.einsum("bihd,bjhd->bhij", q.detach(), keys)
    s = s.masked_fill(torch.arange(SKV) > torch.arange(SQ)[:, None] + 1, -INF)
    p = s.softmax(-1)
    torch.testing.assert_close(q.grad, 0.3 * torch.einsum("bhij,bjhd->bihd", p, keys))
    dk = 0.3 * torch.einsum("bhij,bihd->bjhd", p, q.detach()).unflatten(2, (2, 2)).sum(3)
    torch.testing.assert_close(k.grad, dk)
    assert v.grad is not None and (v.grad == 0).all()


def test_the_gradient_of_a_sink_is_the_weight_it_takes() -> None:
    q, k, v = tensors()
    sink = torch.randn(H).double().requires_grad_()
    _, lse = reference(variant("causal", head_dim=4, sink=True), q, k, v, sink=sink)
    lse.sum().backward()
    torch.testing.assert_close(sink.grad, (sink[:, None] - lse).exp().sum((0, 2)).detach())


@pytest.mark.parametrize("formula", [reference, baseline])
@pytest.mark.parametrize("keys", [0, SKV])
def test_sinks_that_are_no_numbers(keys: int, formula: object) -> None:
    """Inf takes all weight: its lse is itself. NaN reaches all rows of its head, even those that see no key."""
    q, k, v = tensors()
    sink = torch.tensor([INF, NAN, 0.0, -INF]).double().requires_grad_()
    w = variant("causal and q > 1", head_dim=4, sink=True)
    o, lse = formula(w, q, k[:, :keys], v[:, :keys], sink=sink)  # type: ignore[operator]
    assert (lse[:, 0] == INF).all() and lse[:, 1].isnan().all() and lse[:, 2].isfinite().all()
    assert (o[:, :, 0] == 0).all() and o[:, :, 1].isnan().all() and o[:, :, 2:].isfinite().all()
    finite = o[:, :, [0, 2, 3]].sum() + lse[:, [0, 2]].sum()
    found = torch.autograd.grad(finite, [sink])[0]
    assert found[0] == B * SQ and found[[2, 3]].isfinite().all()
    infinite = torch.full((H,), INF).double().requires_grad_()
    found = torch.autograd.grad(formula(w, q, k, v, sink=infinite)[0].sum(), [q, k, v, infinite])  # type: ignore[operator]
    assert all((each == 0).all() for each in found)


@pytest.mark.parametrize("formula", [reference, baseline])
def test_rows_that_see_nothing_have_zero_gradients(formula: object) -> None:
    """Even where the gradient of their lse, which is -inf, is NaN or infinite."""
    w = variant("on[i, j]", "softcap(2)", params=PARAMS, head_dim=4)
    on = torch.tensor([[0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()
    q, k, v = tensors()
    o, lse = formula(w, q, k, v, params={"on": on})  # type: ignore[operator]
    assert (o[:, 0] == 0).all() and (lse[:, :, 0] == -INF).all()
    upstream = torch.ones_like(lse)
    upstream[:, :, 0], upstream[:, :, 2] = NAN, INF
    torch.autograd.backward([o, lse], [torch.ones_like(o), upstream])
    for tensor in (q, k, v):
        assert tensor.grad is not None and tensor.grad.isfinite().all()
    assert (q.grad[:, [0, 2]] == 0).all() and (q.grad[:, 1] != 0).all()  # type: ignore[index]
    assert (k.grad[:, [1, 3]] == 0).all() and (v.grad[:, [1, 3]] == 0).all()  # type: ignore[index]


# NaN and infinity reach exactly what may see them

MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 0]]).bool()


def spoiled(tensor: str, value: float, row: int, formula: object) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(o, lse, gradients of q, k, v) with ``value`` in one component of one row of ``tensor``, in all heads."""
    w = variant("on[i, j]", "softcap(3)", params=PARAMS, head_dim=4)
    x = tensors()
    d_o = torch.randn(B, SQ, H, 4, generator=torch.Generator().manual_seed(2)).double()
    with torch.no_grad():
        (d_o if tensor == "d_o" else x["qkv".index(tensor)])[0, row, :, 1] = value
    o, lse = formula(w, *x, params={"on": MASK})  # type: ignore[operator]
    gradients = torch.autograd.grad([o, lse], x, [d_o.to(o.dtype), torch.ones_like(lse)])
    return o, lse, list(gradients)


def bad(x: Tensor, sequence: int = 1) -> list[bool]:
    """Which rows of batch 0 hold anything not finite; batch 1 holds nothing of the kind."""
    assert x[1].isfinite().all()
    return (~x[0].isfinite()).flatten(1).any(1).tolist() if sequence == 1 else (~x[0].isfinite()).any(0).tolist()


def clean(tensor: str, formula: object) -> tuple[Tensor, Tensor, list[Tensor]]:
    return spoiled(tensor, 0.0, 3, formula) if tensor in "kv" else spoiled("k", 0.0, 3, formula)


@pytest.mark.parametrize("formula", [reference, baseline])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("tensor", ["k", "v"])
def test_a_key_no_row_sees_changes_nothing(tensor: str, value: float, formula: object) -> None:
    o, lse, gradients = spoiled(tensor, value, 3, formula)
    o_clean, lse_clean, gradients_clean = clean(tensor, formula)
    assert torch.equal(o, o_clean) and torch.equal(lse, lse_clean)
    assert all(torch.equal(one, other) for one, other in zip(gradients, gradients_clean, strict=True))
    assert (gradients[1][:, 3] == 0).all() and (gradients[2][:, 3] == 0).all()


@pytest.mark.parametrize("formula", [reference, baseline])
def test_nan_in_a_key_reaches_the_rows_that_see_it(formula: object) -> None:
    o, lse, (dq, dk, dv) = spoiled("k", NAN, 1, formula)
    assert bad(o) == bad(lse, 2) == bad(dq) == [True, True, False]
    assert bad(dk) == bad(dv) == [True, True, True, False]  # all that rows 0 and 1 see
    o_clean = spoiled("k", 0.0, 1, formula)[0]
    assert torch.equal(o[0, 2], o_clean[0, 2]) and torch.equal(o[1], o_clean[1])


@pytest.mark.parametrize("formula", [reference, baseline])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_value_reaches_the_rows_that_see_it(value: float, formula: object) -> None:
    o, lse, (dq, dk, dv) = spoiled("v", value, 1, formula)
    assert bad(o) == [True, True, False]
    if value == value:
        assert (o[0, :2, :, 1] == value).all()
    assert o[0, :, :, 0].isfinite().all()  # the other components
    assert lse.isfinite().all() and bad(dv) == [False] * 4
    assert bad(dq) == [True, True, False] and bad(dk) == [True, True, True, False]


@pytest.mark.parametrize("formula", [reference, baseline])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_query_reaches_its_row(value: float, formula: object) -> None:
    o, lse, (dq, dk, dv) = spoiled("q", value, 1, formula)
    if value != value:
        assert bad(o) == bad(lse, 2) == bad(dq) == [False, True, False]
        assert bad(dk) == bad(dv) == [False, True, True, False]
    for clean_tensor in (o[0, [0, 2]], dq[0, [0, 2]], dk[0, [0, 3]], dv[0, [0, 3]]):
        assert clean_tensor.isfinite().all()


@pytest.mark.parametrize("formula", [reference, baseline])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_gradient_of_o_reaches_what_its_row_sees(value: float, formula: object) -> None:
    o, lse, (dq, dk, dv) = spoiled("d_o", value, 1, formula)
    assert o.isfinite().all() and lse.isfinite().all()
    assert bad(dq) == [False, True, False]
    assert bad(dk) == bad(dv) == [False, True, True, False]


def test_infinite_key_with_no_mask_is_plain_arithmetic() -> None:
    w = variant(head_dim=4)
    q, k, v = tensors()
    with torch.no_grad():
        k[0, 1] = -INF
        q.abs_()
    o, lse = reference(w, q, k, v)
    with torch.no_grad():
        kept = [0, 2, 3]
        o_kept, lse_kept = reference(w, q[:1], k[:1, kept], v[:1, kept])
    torch.testing.assert_close(o[:1].detach(), o_kept)
    torch.testing.assert_close(lse[:1].detach(), lse_kept)
