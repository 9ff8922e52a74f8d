"""Backward calls of rendered kernels, judged against autograd of the float64 oracle by the rule of every check."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from backward_kernels import backward_kernel
from torch import Tensor

from fagen.runtime.check.compare import expect
from fagen.runtime.check.inputs import Inputs
from fagen.runtime.variant import Variant


def check_backward(
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    isa: str = "native",
    sink: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    d_o: Tensor | None = None,
    lse_gradient: bool = True,
    threads: int = 2,
) -> dict[str, Tensor]:
    """Run forward and backward and hold every gradient to the rule, row by row. Returns the gradients by name.

    Gradients of params are judged in the param's dtype, as a module gives them.
    """
    kernel = backward_kernel(variant, isa)
    params = dict(params or {})
    o, lse = kernel.forward(q, k, v, sink=sink, params=params)
    d_o = torch.randn(o.shape).to(o.dtype) if d_o is None else d_o
    d_lse = torch.randn(lse.shape) if lse_gradient else None
    got = kernel(q, k, v, o, lse, d_o, d_lse, sink=sink, params=params, threads=threads)
    inputs = Inputs(q, k, v, d_o, d_lse, sink, params, None, {})
    as_given = {
        name: tensor.to(params[name[2:]].dtype) if name[2:] in params else tensor for name, tensor in got.items()
    }
    for deviation in expect(variant, inputs, gradients=True).judge(as_given):
        assert deviation.passed, deviation
    return got
