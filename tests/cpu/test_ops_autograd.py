"""Gradients: of what, of nothing else, never silently wrong; and the modes that meet them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fagen.runtime.variant import Variant

DIFFERENTIABLE = [variant for variant in naive.VARIANTS if variant.backward]
EVERY = pytest.mark.parametrize("variant", DIFFERENTIABLE, ids=lambda variant: variant.name)


def _leaves(variant: Variant, **sizes: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(what requires grad, what does not) of a call, by name."""
    qkv, named = naive.draw(variant, **sizes)
    plain = {param.name for param in variant.params if not param.grad}
    tensors = {**dict(zip("qkv", qkv, strict=True)), **named}
    return (
        {name: t.requires_grad_() for name, t in tensors.items() if name not in plain},
        {name: t for name, t in tensors.items() if name in plain},
    )


def _expected(kernel: Any, leaves: dict[str, Tensor], rest: dict[str, Tensor], loss: Any) -> dict[str, Tensor]:
    doubles = {name: t.detach().double().requires_grad_() for name, t in leaves.items()}
    total = loss(*kernel.reference(**doubles, **rest, return_lse=True))
    gradients = torch.autograd.grad(total, list(doubles.values()), allow_unused=True)
    return {
        name: torch.zeros_like(t) if g is None else g.float()
        for (name, t), g in zip(leaves.items(), gradients, strict=True)
    }


LOSSES = {
    "o": lambda o, lse: (o * torch.arange(o.shape[1]).view(1, -1, 1, 1)).sum(),
    "lse": lambda o, lse: (lse.masked_fill(lse == -torch.inf, 0) * torch.arange(lse.shape[2])).sum(),
    "both": lambda o, lse: o.square().sum() + lse.masked_fill(lse == -torch.inf, 0).square().sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@EVERY
def test_gradients_are_the_formulas(small: ModuleType, variant: Variant, loss: str) -> None:
    """Of lse alone dv is zero and the others are not."""
    kernel = getattr(small, variant.name)
    leaves, rest = _leaves(variant)
    LOSSES[loss](*kernel(**leaves, **rest, return_lse=True)).backward()
    for name, expected in _expected(kernel, leaves, rest, LOSSES[loss]).items():
        assert leaves[name].grad is not None, name
        torch.testing.assert_close(leaves[name].grad, expected, msg=lambda m, name=name: f"{name}: {m}")
    if loss == "lse":
        assert not leaves["v"].grad.any() and leaves["q"].grad.any()


@EVERY
def test_only_what_requires_grad(small: ModuleType, variant: Variant) -> None:
    kernel = getattr(small, variant.name)
    leaves, rest = _leaves(variant)
    gradients = dict(
        zip(leaves, torch.autograd.grad(kernel(**leaves, **rest).square().sum(), list(leaves.values())), strict=True)
    )
    for wanted in leaves:
        some = {name: t.detach().requires_grad_(name == wanted) for name, t in leaves.items()}
        kernel(**some, **rest).square().sum().backward()
        for name, t in some.items():
            assert (t.grad is None) == (name != wanted)
        assert torch.equal(some[wanted].grad, gradients[wanted])
    with torch.no_grad():
        assert not kernel(**leaves, **rest).requires_grad
    with torch.inference_mode():
        assert torch.equal(kernel(**leaves, **rest), kernel(**leaves, **rest))


def test_broadcast_param_sums_its_gradient(small: ModuleType) -> None:
    """An expanded slope gets the sum over the heads it stands for."""
    leaves, rest = _leaves(small.alibi_d16.variant)
    slope = leaves.pop("slope").detach()
    one = slope[:1].clone().requires_grad_()
    small.alibi_d16(**leaves, slope=one.expand(4)).sum().backward()
    every = slope[:1].repeat(4).requires_grad_()
    small.alibi_d16(**leaves, slope=every).sum().backward()
    torch.testing.assert_close(one.grad, every.grad.sum(0, keepdim=True))


def test_expanded_and_strided_output_gradients(small: ModuleType) -> None:
    leaves, _ = _leaves(small.causal_d16.variant)
    o, lse = small.causal_d16(**leaves, return_lse=True)
    d_o = torch.randn(1, 1, 4, 16).expand_as(o)
    d_lse = torch.randn(5, 4, 2).permute(2, 1, 0)
    got = torch.autograd.grad([o, lse], list(leaves.values()), [d_o, d_lse], retain_graph=True)
    want = torch.autograd.grad([o, lse], list(leaves.values()), [d_o.contiguous(), d_lse.contiguous()])
    assert all(torch.equal(*pair) for pair in zip(got, want, strict=True))


def test_backward_twice_over_one_graph(small: ModuleType) -> None:
    leaves, _ = _leaves(small.causal_d16.variant)
    total = small.causal_d16(**leaves).square().sum()
    first = torch.autograd.grad(total, leaves["q"], retain_graph=True)
    assert torch.equal(first[0], torch.autograd.grad(total, leaves["q"])[0])


def test_second_order_is_an_error(small: ModuleType) -> None:
    """Asking for the graph is no error by itself: others in the loss may have second derivatives."""
    leaves, _ = _leaves(small.causal_d16.variant)
    (gradient,) = torch.autograd.grad(small.causal_d16(**leaves).sum(), leaves["q"], create_graph=True)
    with pytest.raises(RuntimeError, match="causal_d16: double backward is not supported.*causal_d16.reference"):
        gradient.square().sum().backward()
    reference = small.causal_d16.reference(**leaves)
    (gradient,) = torch.autograd.grad(reference.sum(), leaves["q"], create_graph=True)
    gradient.square().sum().backward()
    assert leaves["q"].grad.any()


def test_in_place_change_of_a_saved_tensor_is_seen(small: ModuleType) -> None:
    leaves, _ = _leaves(small.causal_d16.variant)
    k = leaves["k"] * 1
    o = small.causal_d16(leaves["q"], k, leaves["v"])
    k.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoint(small: ModuleType, reentrant: bool) -> None:
    leaves, _ = _leaves(small.causal_d16.variant)
    small.causal_d16(**leaves).square().sum().backward()
    expected = [t.grad for t in leaves.values()]
    for t in leaves.values():
        t.grad = None
    checkpoint(small.causal_d16, *leaves.values(), use_reentrant=reentrant).square().sum().backward()
    assert all(torch.equal(t.grad, want) for t, want in zip(leaves.values(), expected, strict=True))


def test_saved_tensor_hooks(small: ModuleType) -> None:
    leaves, _ = _leaves(small.causal_d16.variant)
    with torch.autograd.graph.save_on_cpu():
        total = small.causal_d16(**leaves).square().sum()
    expected = torch.autograd.grad(small.causal_d16(**leaves).square().sum(), leaves["k"])
    assert torch.equal(torch.autograd.grad(total, leaves["k"])[0], expected[0])


def test_autocast_casts_q_k_v_alone(small: ModuleType) -> None:
    """The variant's dtype is what was chosen by name; params keep theirs, gradients come back in the inputs'."""
    leaves, _ = _leaves(small.alibi_d16.variant)
    halves = {name: leaves[name].detach().bfloat16().requires_grad_() for name in "qk"}
    rest = {"v": leaves["v"], "slope": leaves["slope"]}
    with torch.autocast("cpu", torch.bfloat16):
        o = small.alibi_d16(**halves, **rest)
    assert o.dtype == torch.float32
    expected = small.alibi_d16(**{name: t.float() for name, t in halves.items()}, **rest)
    assert torch.equal(o, expected)
    o.sum().backward()
    assert halves["q"].grad.dtype == torch.bfloat16 and leaves["slope"].grad.dtype == torch.float32
    with pytest.raises(TypeError, match="q: expected dtype torch.float32, found torch.bfloat16"):
        small.alibi_d16(**halves, **rest)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match="slope: expected dtype torch.float32"):
        small.alibi_d16(**halves, v=leaves["v"], slope=leaves["slope"].bfloat16())


def test_gradient_in_a_thread(small: ModuleType) -> None:
    """Calls from several Python threads at once."""
    from concurrent.futures import ThreadPoolExecutor

    leaves, _ = _leaves(small.causal_d16.variant, Sq=33, Skv=33)
    tensors = [t.detach() for t in leaves.values()]

    def work(_: int) -> Tensor:
        own = [t.clone().requires_grad_() for t in tensors]
        small.causal_d16(*own).square().sum().backward()
        return torch.cat([t.grad.flatten() for t in own])

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(16)))
    assert all(torch.equal(results[0], result) for result in results)
