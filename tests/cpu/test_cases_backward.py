"""Backward, from faults reported to attention libraries.

Groups, determinism, the gradients of lse and of params, second order.
"""

from __future__ import annotations

import pytest
import torch
from calls import call, draw, judge


@pytest.mark.parametrize("heads", [(6, 2), (8, 2), (4, 1), (9, 3)])
@pytest.mark.parametrize("name", ["causal_d64_f32", "causal_d64_bf16"])
def test_gradients_of_shared_keys_are_sums_over_their_heads(cases, name, heads):
    kernel = getattr(cases, name)
    q, k, v = draw(kernel, B=2, H=heads[0], Hk=heads[1], Sq=33, Skv=33)
    d_o = torch.randn(q.shape).to(q.dtype)
    got = judge(kernel, q, k, v, d_o=d_o)
    group = heads[0] // heads[1]
    apart = call(kernel, q, *(tensor.repeat_interleave(group, 2) for tensor in (k, v)), d_o=d_o)
    for output in ("dk", "dv"):
        summed = apart[output].float().unflatten(2, (heads[1], group)).sum(3)
        tolerance = 1e-4 if name.endswith("f32") else 5e-2
        torch.testing.assert_close(got[output].float(), summed, rtol=tolerance, atol=tolerance)
        assert got[output].isfinite().all()


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_deterministic_gradients_are_the_same_bits_on_every_run(cases, kv_heads):
    kernel = cases.steady_d128_bf16
    q, k, v = draw(kernel, B=2, H=4, Hk=kv_heads, Sq=1024, Skv=1024)
    d_o = torch.randn(q.shape).bfloat16()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        want = call(kernel, q, k, v, d_o=d_o)
        for run in range(30 if kv_heads == 1 else 5):
            torch.set_num_threads(1 + run % 4)
            got = call(kernel, q, k, v, d_o=d_o)
            for output, tensor in want.items():
                assert torch.equal(got[output], tensor), output
    finally:
        torch.set_num_threads(threads)


def test_lse_has_a_gradient(cases):
    kernel = cases.full_d64_f32
    q, k, v = draw(kernel, H=1, Hk=1, Sq=6, Skv=9)
    got = judge(kernel, q, k, v, d_lse=torch.ones(1, 1, 6))
    p = torch.softmax(q[0, :, 0].double() @ k[0, :, 0].double().T / 8.0, -1)
    torch.testing.assert_close(got["dq"][0, :, 0].double(), p @ k[0, :, 0].double() / 8.0, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got["dk"][0, :, 0].double(), p.T @ q[0, :, 0].double() / 8.0, rtol=1e-5, atol=1e-5)
    assert (got["dv"] == 0).all()
    d_o = torch.ones(1, 6, 1, 64)
    both = judge(kernel, q, k, v, d_o=d_o, d_lse=torch.ones(1, 1, 6))
    alone = judge(kernel, q, k, v, d_o=d_o)
    for output in ("dq", "dk", "dv"):
        torch.testing.assert_close(both[output], alone[output] + got[output], rtol=1e-5, atol=1e-5)


def test_slopes_learn(cases):
    q, k, v = draw(cases.alibi_d16, B=2, H=3, Hk=3, Sq=17, Skv=40)
    got = judge(cases.alibi_d16, q, k, v, d_o=torch.randn_like(q), slope=torch.rand(3))
    assert (got["d_slope"].abs() > 1e-3).all()


def test_a_broadcast_bias_gets_the_sum_of_what_it_was_read_for(cases):
    q, k, v = draw(cases.biased_d64_f32, B=2, H=3, Hk=3, Sq=9, Skv=20)
    d_o = torch.randn_like(q)
    bias = torch.randn(1, 3, 1, 20, requires_grad=True)
    cases.biased_d64_f32(q, k, v, bias=bias.expand(2, 3, 9, 20)).backward(d_o)
    whole = judge(cases.biased_d64_f32, q, k, v, d_o=d_o, bias=bias.detach().expand(2, 3, 9, 20).contiguous())
    torch.testing.assert_close(bias.grad, whole["d_bias"].sum((0, 2), keepdim=True), rtol=1e-4, atol=1e-5)
    # The same as a param with one entry for each head and key.
    q, k, v = draw(cases.key_bias_d16, B=2, H=3, Hk=3, Sq=9, Skv=20)
    judge(cases.key_bias_d16, q, k, v, d_o=torch.randn_like(q), key=torch.randn(3, 20))


def test_a_scalar_learns(cases):
    q, k, v = draw(cases.gain_d16, B=2, Sq=9, Skv=20)
    got = judge(cases.gain_d16, q, k, v, d_o=torch.randn_like(q), gain=torch.tensor(1.5))
    assert got["d_gain"].shape == ()
    assert abs(float(got["d_gain"])) > 1e-3


def test_a_gradient_that_there_is_not_is_an_error_in_forward(cases):
    kernel = cases.window_2_0
    q, k, v = draw(kernel)
    with pytest.raises(ValueError, match="backward"):
        kernel(q.requires_grad_(), k, v)


def test_a_second_derivative_is_an_error(cases):
    kernel = cases.full_d64_f32
    q, k, v = draw(kernel)
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="double backward|second"):
        (gradient,) = torch.autograd.grad(kernel(q, k, v).sum(), q, create_graph=True)
        (gradient**2).sum().backward()
