"""Calls without gradients: what comes back, from whatever memory it is read."""

from __future__ import annotations

from types import ModuleType

import naive
import pytest
import torch
from torch import Tensor

from fagen.runtime.variant import Variant

EVERY = pytest.mark.parametrize("variant", naive.VARIANTS, ids=lambda variant: variant.name)


@EVERY
def test_o_and_lse_are_the_formulas(small: ModuleType, variant: Variant) -> None:
    kernel = getattr(small, variant.name)
    qkv, named = naive.draw(variant)
    o, lse = kernel(*qkv, **named, return_lse=True)
    expected_o, expected_lse = kernel.reference(*qkv, **named, return_lse=True)
    torch.testing.assert_close(o, expected_o.float())
    torch.testing.assert_close(lse, expected_lse.float())
    assert o.is_contiguous() and lse.is_contiguous() and o.dtype == lse.dtype == torch.float32
    assert torch.equal(kernel(*qkv, **named), o)


@EVERY
def test_scale_is_applied(small: ModuleType, variant: Variant) -> None:
    kernel = getattr(small, variant.name)
    qkv, named = naive.draw(variant)
    o = kernel(*qkv, **named, scale=0.9)
    torch.testing.assert_close(o, kernel.reference(*qkv, **named, scale=0.9).float())
    assert not torch.equal(o, kernel(*qkv, **named))


def test_default_scale_is_the_specs(small: ModuleType) -> None:
    qkv, _ = naive.draw(small.plain_d16.variant)
    assert torch.equal(small.plain_d16(*qkv), small.plain_d16(*qkv, scale=0.5))


def _views(t: Tensor) -> dict[str, Tensor]:
    """The same values in other memory: [B, S, H, D] of other strides and offsets."""
    b, s, h, d = t.shape
    wide = torch.full((b, s, h, 2 * d), torch.nan)
    wide[..., ::2] = t
    odd = torch.full((t.numel() + 7,), torch.nan)
    odd[3 : 3 + t.numel()] = t.flatten()
    fused = torch.full((b, s, 3, h, d), torch.nan)
    fused[:, :, 1] = t
    return {
        "contiguous": t.clone(),
        "heads first": t.transpose(1, 2).contiguous().transpose(1, 2),
        "sequence first": t.transpose(0, 1).contiguous().transpose(0, 1),
        "dims apart": wide[..., ::2],
        "transposed": t.transpose(1, 3).contiguous().transpose(1, 3),
        "odd offset": odd[3 : 3 + t.numel()].view(b, s, h, d),
        "slice of fused qkv": fused[:, :, 1],
    }


@pytest.mark.parametrize("form", _views(torch.zeros(1, 1, 1, 1)))
def test_any_strides(small: ModuleType, form: str) -> None:
    """Any strides and offsets, forward and backward."""
    kernel = small.causal_d16
    qkv, _ = naive.draw(kernel.variant)
    expected, expected_gradients = _with_gradients(kernel, qkv, qkv[0])
    for place in range(3):
        moved = list(qkv)
        moved[place] = _views(qkv[place])[form]
        o, gradients = _with_gradients(kernel, moved, _views(qkv[0])[form])
        assert torch.equal(o, expected)
        for got, want in zip(gradients, expected_gradients, strict=True):
            assert torch.equal(got, want)


def _with_gradients(kernel: object, qkv: object, d_o: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    leaves = [t.detach().requires_grad_() for t in qkv]  # type: ignore[attr-defined]
    o = kernel(*leaves)  # type: ignore[operator]
    return o, torch.autograd.grad(o, leaves, d_o)


def test_broadcast_heads_and_params(small: ModuleType) -> None:
    qkv, named = naive.draw(small.doc_d16.variant)
    k = qkv[1][:, :, :1].expand(-1, -1, 2, -1)
    doc = named["doc"][:1].expand(2, -1)
    got = small.doc_d16(qkv[0], k, qkv[2], doc=doc)
    assert torch.equal(got, small.doc_d16(qkv[0], k.contiguous(), qkv[2], doc=doc.contiguous()))


@pytest.mark.parametrize("form", _views(torch.zeros(1, 1, 1, 1)))
def test_out_is_written_where_it_lies(small: ModuleType, form: str) -> None:
    kernel = small.causal_d16
    qkv, _ = naive.draw(kernel.variant)
    expected, expected_lse = kernel(*qkv, return_lse=True)
    out = _views(torch.full_like(expected, torch.nan))[form]
    got, lse = kernel(*qkv, out=out, return_lse=True)
    assert got is out
    assert torch.equal(out, expected) and torch.equal(lse, expected_lse)


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Sq": 0}, {"Skv": 0}, {"Sq": 0, "Skv": 0}, {"H": 0}])
@EVERY
def test_nothing_to_do(small: ModuleType, variant: Variant, sizes: dict[str, int]) -> None:
    """Empty outputs; without keys o = 0 and lse = -inf (or the sink), and no gradient."""
    kernel = getattr(small, variant.name)
    qkv, named = naive.draw(variant, **sizes)
    leaves = [t.requires_grad_(variant.backward) for t in qkv]
    o, lse = kernel(*leaves, **named, return_lse=True)
    assert o.shape == (*qkv[0].shape[:3], variant.value_dim)
    if sizes == {"Skv": 0}:
        assert torch.equal(o, torch.zeros_like(o))
        empty = named["sink"][None, :, None].expand_as(lse) if variant.sink else torch.full_like(lse, -torch.inf)
        torch.testing.assert_close(lse, empty)
    if variant.backward:
        for gradient in torch.autograd.grad(o.sum(), leaves):
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_alibi_bias_is_anchored_at_the_end(small: ModuleType) -> None:
    """With q = 0 the scores are the bias, so lse and the weights show it."""
    q, k, v = torch.zeros(1, 2, 1, 16), torch.zeros(1, 4, 1, 16), torch.eye(4, 16).reshape(1, 4, 1, 16)
    o, lse = small.alibi_d16(q, k, v, slope=torch.tensor([0.5]), return_lse=True)
    bias = torch.tensor([[-1, -0.5, 0, -0.5], [-1.5, -1, -0.5, 0]])
    torch.testing.assert_close(lse[0, 0], bias.logsumexp(1))
    torch.testing.assert_close(o[0, :, 0, :4], bias.softmax(1))


def test_threads_share_the_rows(small: ModuleType) -> None:
    """torch's own pool: one thread or several, the same numbers."""
    qkv, _ = naive.draw(small.causal_d16.variant, Sq=301, Skv=301)
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(small.causal_d16(*qkv))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*results)


def test_tile_counts(small: ModuleType) -> None:
    qkv, named = naive.draw(small.doc_d16.variant, B=1, Sq=4, Skv=4, H=2)
    named["doc"] = torch.tensor([[0, 0, 1, 1]], dtype=torch.int32)
    counts = small.tile_counts("doc_d16", qkv[0], qkv[1], **named)
    assert (counts.total, counts.full, counts.partial, counts.empty) == (32, 16, 0, 0)
    with pytest.raises(TypeError, match=r"expected params \['doc'\], found \[\]"):
        small.tile_counts("doc_d16", qkv[0], qkv[1])
    with pytest.raises(ValueError, match="no variant 'nothing'"):
        small.tile_counts("nothing", qkv[0], qkv[1])
