"""torch.func: grad and vmap right in every composition, forward mode and second order refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from fagen.runtime.variant import Variant

REFUSED_FORWARD = "causal_d16: forward-mode derivatives .* are not supported"
EVERY = pytest.mark.parametrize("variant", naive.VARIANTS, ids=lambda variant: variant.name)


def _inputs(small: ModuleType) -> tuple[Tensor, ...]:
    return naive.draw(small.causal_d16.variant)[0]


def _loss(small: ModuleType, *qkv: Tensor) -> Tensor:
    o, lse = small.causal_d16(*qkv, return_lse=True)
    return o.square().sum() + lse.sin().sum()


def test_grad_is_autograds(small: ModuleType) -> None:
    qkv = _inputs(small)
    got = grad(lambda *t: _loss(small, *t), argnums=(0, 1, 2))(*qkv)
    leaves = [t.clone().requires_grad_() for t in qkv]
    for g, want in zip(got, torch.autograd.grad(_loss(small, *leaves), leaves), strict=True):
        torch.testing.assert_close(g, want)


def test_grad_within_autograd(small: ModuleType) -> None:
    """A plain backward through the value of a function that torch.func differentiates elsewhere."""
    q, k, v = _inputs(small)
    k.requires_grad_()
    _, pull = vjp(lambda q: small.causal_d16(q, k, v), q)
    assert torch.isfinite(pull(torch.ones_like(q))[0]).all()


def test_grad_of_a_param_without_one_is_an_error(small: ModuleType) -> None:
    qkv, named = naive.draw(small.scalar_d16.variant)
    with pytest.raises(ValueError, match="no gradient for bias"):
        grad(lambda bias: small.scalar_d16(*qkv, bias=bias).sum())(named["bias"])


@pytest.mark.parametrize("transform", [lambda f: grad(lambda x: grad(f)(x).sum()), hessian])
def test_second_order_is_an_error(small: ModuleType, transform: Any) -> None:
    q, k, v = _inputs(small)
    with pytest.raises((RuntimeError, NotImplementedError), match="causal_d16: (double backward|forward-mode)"):
        transform(lambda q: _loss(small, q, k, v))(q)


def test_forward_mode_is_an_error(small: ModuleType) -> None:
    q, k, v = _inputs(small)
    f = lambda q: small.causal_d16(q, k, v)  # noqa: E731
    with pytest.raises(NotImplementedError, match=REFUSED_FORWARD):
        jvp(f, (q,), (q,))
    with pytest.raises(NotImplementedError, match=REFUSED_FORWARD):
        jacfwd(f)(q)
    for requires_grad in (False, True):
        with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=REFUSED_FORWARD):
            f(forward_ad.make_dual(q.detach().requires_grad_(requires_grad), torch.ones_like(q)))
    with forward_ad.dual_level():
        assert torch.equal(f(q.detach()), f(q.detach()))  # no dual tensor: no error


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (2, None, None), (None, 1, 4), (0, None, 0)])
def test_vmap_over_q_k_v(small: ModuleType, in_dims: tuple[int | None, ...]) -> None:
    many = [
        torch.stack([t, t * 0.5, -t], dim) if dim is not None else t
        for t, dim in zip(_inputs(small), in_dims, strict=True)
    ]
    got, got_lse = vmap(lambda *t: small.causal_d16(*t, return_lse=True), in_dims)(*many)
    for i in range(3):
        one = [t if dim is None else t.select(dim, i) for t, dim in zip(many, in_dims, strict=True)]
        o, lse = small.causal_d16(*one, return_lse=True)
        assert torch.equal(got[i], o) and torch.equal(got_lse[i], lse)


@EVERY
def test_vmap_over_everything(small: ModuleType, variant: Variant) -> None:
    """Params with a batch dim are folded with q; others are looped over. Either way: one call a slice."""
    kernel = getattr(small, variant.name)
    draws = [naive.draw(variant) for _ in range(3)]
    qkv = [torch.stack(column) for column in zip(*(draw[0] for draw in draws), strict=True)]
    named = {name: torch.stack([draw[1][name] for draw in draws]) for name in draws[0][1]}
    got = vmap(lambda qkv, named: kernel(*qkv, **named))(qkv, named)
    for i, (one, params) in enumerate(draws):
        assert torch.equal(got[i], kernel(*one, **params))


def test_vmap_sees_the_batch_number(small: ModuleType) -> None:
    """What may be folded is decided by how the expressions use `b`."""
    from fagen.runtime.folding import foldable

    P = naive.Param
    folded = {"kv < n[b]": P("n", "i32", ("B",)), "doc[b, q] == doc[b, kv]": naive.DOC, "kv <= q": None}
    seen = {
        "kv < b": None,
        "kv < n[b] + b": P("n", "i32", ("B",)),
        "kv < n[h % 2]": P("n", "i32", ("B",)),
        "kv < n[h, b]": P("n", "i32", ("H", "B")),
        "kv < n[b % 2]": P("n", "i32", ("B",)),
    }
    for masks, expected in ((folded, True), (seen, False)):
        for mask, param in masks.items():
            params = () if param is None else (param,)
            variant = Variant("x", 16, 16, mask=naive._expression(mask, "mask", *params), params=params)
            assert foldable(variant) is expected, mask


def test_nested_vmap(small: ModuleType) -> None:
    qkv = [torch.randn(2, 3, *t.shape) for t in _inputs(small)]
    got = vmap(vmap(small.causal_d16))(*qkv)
    assert torch.equal(got[1, 2], small.causal_d16(*(t[1, 2] for t in qkv)))


@pytest.mark.parametrize("name", ["alibi_d16", "sink_d16", "doc_d16"])
def test_per_sample_gradients(small: ModuleType, name: str) -> None:
    """vmap over grad, the summed gradient of a param without a batch dim told apart for each sample."""
    kernel = getattr(small, name)
    _, named = naive.draw(kernel.variant)
    qkv = [torch.stack(column) for column in zip(*(naive.draw(kernel.variant)[0] for _ in range(3)), strict=True)]
    wanted = {n: t for n, t in named.items() if t.is_floating_point()}
    fixed = {n: t for n, t in named.items() if n not in wanted}

    def loss(qkv: list[Tensor], wanted: dict[str, Tensor]) -> Tensor:
        return kernel(*qkv, **wanted, **fixed).square().sum()

    got_qkv, got = vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None))(qkv, wanted)
    for i in range(3):
        leaves = [t[i].clone().requires_grad_() for t in qkv]
        params = {n: t.clone().requires_grad_() for n, t in wanted.items()}
        loss(leaves, params).backward()
        for g, leaf in zip(got_qkv, leaves, strict=True):
            torch.testing.assert_close(g[i], leaf.grad)
        for n, leaf in params.items():
            torch.testing.assert_close(got[n][i], leaf.grad)


def test_grad_over_vmap(small: ModuleType) -> None:
    qkv = [torch.randn(3, *t.shape) for t in _inputs(small)]
    got = grad(lambda q: vmap(small.causal_d16)(q, *qkv[1:]).square().sum())(qkv[0])
    want = torch.stack(
        [grad(lambda q, i=i: small.causal_d16(q, qkv[1][i], qkv[2][i]).square().sum())(qkv[0][i]) for i in range(3)]
    )
    torch.testing.assert_close(got, want)


def test_jacrev(small: ModuleType) -> None:
    q, k, v = naive.draw(small.causal_d16.variant, B=1, Sq=2, Skv=2, H=1, Hk=1)[0]
    got = jacrev(lambda q: small.causal_d16(q, k, v))(q)
    want = torch.autograd.functional.jacobian(lambda q: small.causal_d16.reference(q, k, v), q.double())
    torch.testing.assert_close(got, want.float())


def test_vmap_of_autograd(small: ModuleType) -> None:
    """is_grads_batched runs the plain backward under vmap."""
    leaves = [t.requires_grad_() for t in _inputs(small)]
    o = small.causal_d16(*leaves)
    several = torch.randn(3, *o.shape)
    (got,) = torch.autograd.grad(o, leaves[0], several, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        torch.testing.assert_close(got[i], torch.autograd.grad(o, leaves[0], several[i], retain_graph=True)[0])
