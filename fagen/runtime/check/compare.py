"""What a call should give, and how what it gave compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..baseline import baseline
from ..reference import reference
from ..variant import Variant
from .inputs import Inputs
from .magnitude import Sizes
from .pull import pull
from .rule import Deviation, judge

# These rows are single numbers: each is a sum of its own.
_SINGLE = ("lse", "d_sink")
# A weight below this may be 0 where kernels hold it, and what it does to an infinite value is NaN: float16's smallest
# normal number; of the others, which have float32's range, one with room for weights that share a factor.
_FAINT = {"f16": 2.0**-14, "bf16": 2.0**-100, "f32": 2.0**-100}


@dataclass(frozen=True)
class Expected:
    """The reference's and the baseline's outputs, by name: o, lse and, with gradients, dq, dk, dv, d_sink and ``d_``
    and the name of each param with a gradient. ``faint``, in the shape of o, is true where an infinite value weighs so
    little that NaN is as good as Inf; None where there is no such value."""

    variant: Variant
    want: Mapping[str, Tensor]
    base: Mapping[str, Tensor]
    sizes: Mapping[str, Tensor]
    faint: Tensor | None = None

    def judge(self, got: Mapping[str, Tensor]) -> list[Deviation]:
        """The worst of each output in ``got``; those not in it are not judged."""
        return [self._judge(output, tensor) for output, tensor in got.items()]

    def _judge(self, output: str, got: Tensor) -> Deviation:
        dtype = "f32" if output == "lse" else self.variant.dtype
        want, base, size = self.want[output], self.base[output], self.sizes[output]
        if got.dtype != base.dtype or got.shape != want.shape:
            return Deviation(output, float("inf"), "shape")
        if output == "o" and self.faint is not None:
            want = torch.where(self.faint & want.isinf() & got.isnan(), torch.nan, want)
        if output in _SINGLE or not want.dim():
            deviation = judge(output, got[..., None], want[..., None], base[..., None], size[..., None], dtype)
            return Deviation(**{**vars(deviation), "index": deviation.index[:-1]})
        return judge(output, got, want, base, size, dtype)


def expect(variant: Variant, inputs: Inputs, *, gradients: bool) -> Expected:
    """What ``variant`` should give for ``inputs``; ``gradients`` are those of ``inputs.d_o`` and ``inputs.d_lse``."""
    tensors = [("q", inputs.q), ("k", inputs.k), ("v", inputs.v)]
    wide = {name: tensor.double() for name, tensor in tensors}
    params = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.params.items()}
    sink = None if inputs.sink is None else inputs.sink.double()
    want = differentiate(variant, reference, wide["q"], wide["k"], wide["v"], sink, params, inputs, gradients=gradients)
    base = differentiate(
        variant, baseline, inputs.q, inputs.k, inputs.v, inputs.sink, inputs.params, inputs, gradients=gradients
    )
    sizes = Sizes(variant, inputs, want["o"], want["lse"], gradients=gradients)
    size = {output: sizes.size(output, tensor) for output, tensor in want.items()}
    return Expected(variant, want, base, size, _faint(variant, inputs, params))


def _faint(variant: Variant, inputs: Inputs, params: Mapping[str, Tensor]) -> Tensor | None:
    """Where in o an infinite value weighs something, but less than _FAINT."""
    infinite = inputs.v.isinf()
    rows = 2 if variant.layout == "bhsd" else 1  # the dim of v that counts keys
    found = None
    for key in infinite.movedim(rows, 0).flatten(1).any(1).nonzero().flatten().tolist():
        alone = torch.zeros_like(infinite).index_fill(rows, torch.tensor(key), True) & infinite
        weight, _ = reference(
            variant,
            inputs.q,
            inputs.k,
            alone.double(),
            scale=inputs.scale,
            sink=inputs.sink,
            params=params,
            **inputs.dropout(),
        )
        small = (weight > 0) & (weight < _FAINT[variant.dtype])
        found = small if found is None else found | small
    return found


def differentiate(
    variant: Variant,
    formula: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor | None,
    params: Mapping[str, Tensor],
    inputs: Inputs,
    *,
    gradients: bool,
) -> dict[str, Tensor]:
    """The outputs of ``formula`` (called as ``reference`` is) by name, in the dtypes it gives them."""
    leaves = {"dq": q, "dk": k, "dv": v, **({} if sink is None else {"d_sink": sink})}
    leaves |= {f"d_{param.name}": params[param.name] for param in variant.params if param.grad}
    leaves = {name: tensor.detach().requires_grad_(gradients) for name, tensor in leaves.items()}
    given = {name: leaves.get(f"d_{name}", tensor) for name, tensor in params.items()}
    with torch.set_grad_enabled(gradients):
        o, lse = formula(
            variant,
            leaves["dq"],
            leaves["dk"],
            leaves["dv"],
            scale=inputs.scale,
            sink=leaves.get("d_sink"),
            params=given,
            **inputs.dropout(),
        )
    found = {"o": o.detach(), "lse": lse.detach()}
    if not gradients:
        return found
    outputs, seeds = [o], [inputs.d_o.to(o.dtype)]
    if inputs.d_lse is not None:
        outputs.append(lse)
        seeds.append(inputs.d_lse.to(lse.dtype))
    gradient = pull(outputs, list(leaves.values()), seeds, allow_unused=True)
    for (name, leaf), value in zip(leaves.items(), gradient, strict=True):
        found[name] = torch.zeros_like(leaf) if value is None else value.detach()
    return found
