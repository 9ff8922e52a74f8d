"""Checks a variant on its caller's own tensors."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from ..dropout import fresh_state
from .call import Function, forward, forward_and_backward
from .cases import Case, Tiling
from .compare import expect
from .inputs import Inputs, generator
from .judging import describe
from .report import FAILED, PASSED, VariantReport

CASE = "the caller's tensors"


def check_call(
    kernel: Function,
    tiling: Tiling,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
    seed: int = 0,
    **extras: Tensor,
) -> VariantReport:
    """The verdict on ``kernel`` for one call: o, lse and, where it has them, all gradients, against float64.

    q, k, v, ``scale``, ``dropout_p``, ``rng_state`` and ``extras`` (sink and params) are the kernel's own arguments;
    a state that is needed and not given is drawn. The gradients of o and lse are drawn from ``seed``. Takes
    the time of a float64 computation of the unfused formula, forward and backward, in blocks, so its memory grows with
    the lengths and not with their product. Errors in the arguments are raised as the kernel raises them.
    """
    begun = time.monotonic()
    variant = kernel.variant
    q, k, v = q.detach(), k.detach(), v.detach()
    extras = {name: tensor.detach() for name, tensor in extras.items()}
    drawn: dict[str, Any] = {}
    if dropout_p or rng_state is not None:
        drawn = {"dropout_p": dropout_p, "rng_state": fresh_state(q.device) if rng_state is None else rng_state}
    with torch.no_grad():
        o, lse = kernel(q, k, v, scale=scale, return_lse=True, **extras, **drawn)
    source = generator(seed, CASE)
    inputs = Inputs(
        q=q,
        k=k,
        v=v,
        d_o=torch.randn(o.shape, generator=source).to(o.dtype),
        d_lse=torch.randn(lse.shape, generator=source),
        sink=extras.get("sink") if variant.sink else None,
        params={param.name: extras[param.name] for param in variant.params},
        scale=scale,
        guarded={},
        **drawn,
    )
    inputs = inputs.on("cpu")
    device = str(q.device)
    sequence = 2 if variant.layout == "bhsd" else 1
    case = Case(CASE, q.shape[sequence], k.shape[sequence])
    expected = expect(variant, inputs, gradients=variant.backward)
    got = {"o": o.cpu(), "lse": lse.cpu()}
    if variant.backward:
        got |= forward_and_backward(kernel, case, inputs, device)
    written = forward(kernel, case, inputs, device)
    deviations = [*expected.judge(written), *expected.judge(got)]
    worst: dict[str, float] = {}
    for deviation in deviations:
        worst[deviation.output] = max(worst.get(deviation.output, 0.0), deviation.ratio)
    failures = tuple(
        describe(case, deviation, expected, got[deviation.output], tiling)
        for deviation in deviations
        if not deviation.passed
    )
    return VariantReport(
        variant=variant.name,
        verdict=FAILED if failures else PASSED,
        seed=seed,
        level="auto",
        cases=(CASE,),
        worst=worst,
        failures=failures,
        seconds=time.monotonic() - begun,
    )
