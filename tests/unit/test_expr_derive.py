"""Derivatives: each rule against sympy's, finite differences and autograd; where formulas overflow; at kinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from expr_grid import variant_of
from expr_nodes import value
from expr_random import PARAMS, scores

from fagen.expr.derive import derivative
from fagen.expr.emit import lowered
from fagen.expr.graph import Graph, Node, below

X, Y = sympy.symbols("x y", real=True)
_S = np.array([-3.7, -1.2, -0.6, 0.3, 0.9, 2.4, 5.5])
_T = np.array([0.8, -0.4, 1.7, 2.2, -1.3, 0.6, 3.1])

# As written in a score, sympy's formula of it in x = s and y = t, and torch's function.
RULES: list[tuple[str, Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = [
    ("s + t", X + Y, torch.add),
    ("s - t", X - Y, torch.sub),
    ("-s", -X, lambda s, t: -s),
    ("s * t", X * Y, torch.mul),
    ("s / t", X / Y, torch.div),
    ("t / s", Y / X, lambda s, t: t / s),
    ("abs(s)", sympy.Abs(X), lambda s, t: s.abs()),
    ("min(s, t)", sympy.Min(X, Y), torch.minimum),
    ("max(s, t)", sympy.Max(X, Y), torch.maximum),
    ("s ** 2", X**2, lambda s, t: s**2),
    ("s ** 4", X**4, lambda s, t: s**4),
    ("s ** 7", X**7, lambda s, t: s**7),
    ("s ** -1", 1 / X, lambda s, t: s**-1),
    ("s ** -2", X**-2, lambda s, t: s**-2),
    ("abs(s) ** 1.5", sympy.Abs(X) ** sympy.Rational(3, 2), lambda s, t: s.abs() ** 1.5),
    ("abs(s) ** t", sympy.Abs(X) ** Y, lambda s, t: s.abs() ** t),
    ("exp(s)", sympy.exp(X), lambda s, t: s.exp()),
    ("exp2(s)", 2**X, lambda s, t: s.exp2()),
    ("log(abs(s))", sympy.log(sympy.Abs(X)), lambda s, t: s.abs().log()),
    ("log2(abs(s))", sympy.log(sympy.Abs(X), 2), lambda s, t: s.abs().log2()),
    ("sqrt(abs(s))", sympy.sqrt(sympy.Abs(X)), lambda s, t: s.abs().sqrt()),
    ("tanh(s)", sympy.tanh(X), lambda s, t: s.tanh()),
    ("sigmoid(s)", 1 / (1 + sympy.exp(-X)), lambda s, t: s.sigmoid()),
    ("softplus(s)", sympy.log(1 + sympy.exp(X)), lambda s, t: torch.nn.functional.softplus(s)),
    ("sin(s)", sympy.sin(X), lambda s, t: s.sin()),
    ("cos(s)", sympy.cos(X), lambda s, t: s.cos()),
    (
        "s * s if s > t else t * s",
        sympy.Piecewise((X * X, X > Y), (Y * X, True)),
        lambda s, t: torch.where(s > t, s * s, t * s),
    ),
    ("50 * tanh(s / 50)", 50 * sympy.tanh(X / 50), lambda s, t: 50 * (s / 50).tanh()),
]


def slopes(text: str) -> tuple[Graph, Node, Node, Node, Node]:
    """The graph, its s and t, and the derivatives of a score with respect to both."""
    graph = Graph()
    root = lowered(graph, variant_of(PARAMS, score=text))[0]
    s, t = graph.name("s"), graph.read("t", (), "real")
    return graph, s, t, derivative(graph, root, s), derivative(graph, root, t)


@pytest.mark.parametrize(("text", "formula", "function"), RULES, ids=[rule[0] for rule in RULES])
def test_a_rule_agrees_with_sympy_and_autograd(text: str, formula: Any, function: Callable[..., Any]) -> None:
    _, s, t, by_s, by_t = slopes(text)
    tensors = [torch.tensor(points, dtype=torch.float64, requires_grad=True) for points in (_S, _T)]
    gradients = torch.autograd.grad(function(*tensors).sum(), tensors, allow_unused=True)
    for symbol, found, gradient in ((X, by_s, gradients[0]), (Y, by_t, gradients[1])):
        got = np.broadcast_to(value(found, {s: _S, t: _T}), _S.shape)
        exact = np.broadcast_to(sympy.lambdify((X, Y), sympy.diff(formula, symbol), "numpy")(_S, _T), 7)
        np.testing.assert_allclose(got, exact, rtol=3e-7)  # constants are float32
        np.testing.assert_allclose(got, np.zeros(7) if gradient is None else gradient.numpy(), rtol=3e-7)


@pytest.mark.parametrize("text", [text for text in scores(60, seed=11) if "**" not in text])
def test_random_scores_agree_with_finite_differences(text: str) -> None:
    graph = Graph()
    root = lowered(graph, variant_of(PARAMS, score=text))[0]
    rng = np.random.default_rng(5)
    leaves = [node for node in below((root,)) if node.op in ("name", "read")]
    bound: dict[Node, Any] = {}
    for leaf in leaves:
        kinds = {"real": rng.normal(size=64) * 2, "int": rng.integers(-5, 9, 64), "bool": rng.integers(0, 2, 64) == 1}
        bound[leaf] = kinds[leaf.type]
    for variable in [leaf for leaf in leaves if leaf.type == "real"]:
        step = 1e-6
        up, down = (value(root, bound | {variable: bound[variable] + by}) for by in (step, -step))
        with np.errstate(all="ignore"):
            differences = np.broadcast_to((up - down) / (2 * step), 64)
        got = np.broadcast_to(value(derivative(graph, root, variable), bound), 64)
        smooth = np.isfinite(differences) & (abs(differences) < 1e3) & (np.broadcast_to(abs(up), 64) < 1e5)
        close = np.isclose(got, differences, rtol=1e-4, atol=1e-4)
        assert (close | ~smooth).mean() > 0.98, text  # a point may lie on a kink


@pytest.mark.parametrize(
    ("text", "s", "slope"),
    [
        ("sigmoid(s)", -100.0, 3.720076e-44),
        ("sigmoid(s)", 100.0, 3.720076e-44),
        ("sigmoid(s)", -1e4, 0.0),
        ("sigmoid(s)", 1e30, 0.0),
        ("tanh(s)", 1e30, 0.0),
        ("tanh(s)", -400.0, 0.0),
        ("softplus(s)", -1e4, 0.0),
        ("softplus(s)", 1e4, 1.0),
        ("50 * tanh(s / 50)", 3e38, 0.0),
        ("log(1 + exp(s))", -300.0, 0.0),
        ("sqrt(s) if s > 0 else 0", -4.0, 0.0),
        ("log(s) if s > 0 else 2 * s", -4.0, 2.0),
        ("s / t if t > 0 else s", 1.0, 1.0),
    ],
)
def test_where_a_formula_could_overflow_or_leave_its_branch(text: str, s: float, slope: float) -> None:
    _, name, t, by_s, _ = slopes(text)
    found = float(value(by_s, {name: np.float64(s), t: np.float64(0.0)}))
    assert found == pytest.approx(slope, rel=1e-5, abs=1e-50)


@pytest.mark.parametrize(
    ("text", "by_s", "by_t"),
    [
        ("abs(s)", 0.0, 0.0),
        ("min(s, t)", 1.0, 0.0),
        ("min(t, s)", 0.0, 1.0),
        ("max(s, t)", 1.0, 0.0),
        ("max(t, s)", 0.0, 1.0),
        ("max(s, 0)", 1.0, 0.0),
        ("max(0, s)", 0.0, 0.0),
        ("floor(s)", 0.0, 0.0),
        ("s // 2 + t", 0.0, 1.0),
        ("s % 2", 0.0, 0.0),
        ("abs(s) ** 2", 0.0, 0.0),
        ("s * floor(t + 1.5)", 1.0, 0.0),
    ],
)
def test_kinks_at_zero(text: str, by_s: float, by_t: float) -> None:
    _, s, t, *found = slopes(text)
    zeros = {s: np.float64(0.0), t: np.float64(0.0)}
    assert [float(value(node, zeros)) for node in found] == [by_s, by_t]


def test_what_a_score_does_not_depend_on_has_the_constant_zero() -> None:
    graph, _, _, by_s, by_t = slopes("tanh(s) + q * kv")
    assert by_t is graph.real(0.0)
    assert "tanh" in repr(by_s)
    assert slopes("alibi(slope)")[3].value == 1.0
