"""How the oracle evaluates expressions, against their definition in plain Python, over the whole grammar."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import torch
from expressions import PARAMS, masks, points, scores, value
from hypothesis import HealthCheck, given, settings
from torch import Tensor

from fagen.runtime.evaluate import Evaluator
from fagen.runtime.language import FUNCTIONS, Node, parse

# Pairs of one call: the params are the same for all.
FIRST = points(1)[0]
SCALARS = {name: FIRST.names[name] for name, param in PARAMS.items() if not param.shape}
POINTS = [replace(point, seed=0, entries={}, names={**point.names, **SCALARS}) for point in points(60)]
KINDS = {"f32": ("real", torch.float64), "bool": ("bool", torch.bool), "i32": ("int", torch.int64)}


def tensors() -> dict[str, Tensor]:
    found = {}
    for name, param in PARAMS.items():
        kind, dtype = KINDS.get(param.dtype, KINDS["i32"])
        if not param.shape:
            found[name] = torch.tensor(SCALARS[name], dtype=dtype)
            continue
        indices = list(itertools.product(range(POINTS[0].extent), repeat=len(param.shape)))
        entries = [POINTS[0].read(name, index, kind) for index in indices]
        found[name] = torch.tensor(entries, dtype=dtype).reshape((POINTS[0].extent,) * len(param.shape))
    return found


NAMES = {
    name: torch.tensor([point.names[name] for point in POINTS], dtype=torch.float64 if name == "s" else torch.int64)
    for name in ("s", "b", "h", "hk", "i", "j", "q", "kv", "q_len", "kv_len")
}
TENSORS = tensors()


def evaluated(node: Node, *, gradients: bool) -> Tensor:
    names, params = dict(NAMES), dict(TENSORS)
    if gradients:
        names["s"] = names["s"].clone().requires_grad_()
        params = {k: t.clone().requires_grad_() if t.is_floating_point() else t for k, t in params.items()}
    return Evaluator(names, params, torch.float64)(node).expand(len(POINTS))


def close(a: object, b: float) -> bool:
    if isinstance(a, (bool, int)):
        return a == b
    # numpy's functions and torch's may round differently.
    return (math.isnan(a) and math.isnan(b)) or a == b or math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(masks(2) | scores(2))
def test_values(node: Node) -> None:
    expected = [value(node, point) for point in POINTS]
    plain, differentiable = (evaluated(node, gradients=gradients) for gradients in (False, True))
    assert torch.equal(plain.isnan(), differentiable.isnan())
    assert torch.equal(plain[~plain.isnan()], differentiable.detach()[~plain.isnan()])
    for want, got, point in zip(expected, plain.tolist(), POINTS, strict=True):
        assert close(want, got), (want, got, point.names)


def test_every_function_has_a_value() -> None:
    for function in FUNCTIONS:
        text = f"{function}(s, 1)" if function in ("min", "max") else f"{function}(s)"
        node = parse(text, expect="score")
        got = evaluated(node, gradients=False).tolist()
        assert all(close(value(node, point), one) for point, one in zip(POINTS, got, strict=True)), function
