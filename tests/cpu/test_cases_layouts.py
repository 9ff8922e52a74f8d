"""Layouts, from faults reported to attention libraries (views of every kind, offsets, gaps)."""

from __future__ import annotations

import itertools

import pytest
import torch
from calls import call, draw

FORMS = {
    "bshd": lambda t: t.contiguous(),
    "bhsd": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "sbhd": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
}


@pytest.mark.parametrize("name", ["causal_d64_f32", "causal_d64_bf16"])
def test_any_mixture_of_layouts_gives_the_same_bits(cases, name):
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, B=2, H=3, Hk=3, Sq=37, Skv=37)
    d_o = torch.randn(q.shape).to(q.dtype)
    want = call(kernel, q, k, v, d_o=d_o)
    for forms in itertools.product(FORMS.values(), repeat=3):
        tensors = [form(tensor) for form, tensor in zip(forms, (q, k, v), strict=True)]
        got = call(kernel, *tensors, d_o=forms[0](d_o))
        for output, tensor in want.items():
            assert torch.equal(got[output], tensor), output
        out = forms[1](torch.full_like(q, torch.nan))
        kernel(*tensors, out=out)
        assert torch.equal(out, want["o"])


def test_slices_of_one_fused_tensor(cases):
    kernel = cases.causal_d64_f32
    fused = torch.randn(2, 37, 3, 3, 64)
    q, k, v = fused.unbind(2)
    d_o = torch.randn(2, 37, 3, 64)
    want = call(kernel, q.contiguous(), k.contiguous(), v.contiguous(), d_o=d_o)
    got = call(kernel, q, k, v, d_o=d_o)
    for output, tensor in want.items():
        assert torch.equal(got[output], tensor), output
    # The gradient of the fused tensor itself.
    leaf = fused.clone().requires_grad_()
    kernel(*leaf.unbind(2)).backward(d_o)
    assert torch.equal(leaf.grad, torch.stack([want["dq"], want["dk"], want["dv"]], 2))


def test_a_last_dim_with_a_stride(cases):
    kernel = cases.causal_d64_f32
    q = torch.randn(2, 19, 2, 128)[..., ::2]
    k = torch.randn(2, 64, 2, 19).permute(0, 3, 2, 1)
    v = torch.randn(2, 19, 2, 64)
    assert q.stride(-1) == 2 and k.stride(-1) == 2 * 19
    d_o = torch.randn(2, 19, 2, 64)
    want = call(kernel, q.contiguous(), k.contiguous(), v, d_o=d_o)
    got = call(kernel, q, k, v, d_o=d_o)
    for output, tensor in want.items():
        assert torch.equal(got[output], tensor), output


def test_odd_offsets_and_odd_rows(cases):
    kernel = cases.half_bias_d64
    count = 2 * 64 * 4 * 64
    q, k, v = (torch.randn(count + 8).half()[n : n + count].view(2, 64, 4, 64) for n in (1, 2, 3))
    for rows, keys in ((64, 64), (5, 43)):
        # A row of odd length, shared by batches and heads.
        bias = torch.randn(rows * keys + 1).half()[1:].view(1, 1, rows, keys).expand(2, 4, rows, keys)
        views = q[:, :rows], k[:, :keys], v[:, :keys]
        d_o = torch.randn(2, rows, 4, 64).half()
        want = call(kernel, *(view.contiguous() for view in views), d_o=d_o, half=bias.contiguous())
        got = call(kernel, *views, d_o=d_o, half=bias)
        for output, tensor in want.items():
            assert torch.equal(got[output], tensor), output


@pytest.mark.parametrize("width", [361, 364])
def test_mask_rows_of_any_width(cases, width):
    kernel = cases.masked_d16_f32
    q, k, v = draw(kernel, Sq=7, Skv=width)
    ok = (torch.rand(1 * 7 * width + 3) < 0.5)[3:].view(1, 7, width)
    d_o = torch.randn_like(q)
    want = call(kernel, q, k, v, d_o=d_o, ok=ok.clone())
    got = call(kernel, q, k, v, d_o=d_o, ok=ok)
    for output, tensor in want.items():
        assert torch.equal(got[output], tensor), output
