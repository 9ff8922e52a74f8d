"""Scores over q · k, and their exponents of 2: the score's own numbers, by as few operations as there can be."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from expr_grid import variant_of
from expr_nodes import value
from expr_random import PARAMS, scores

from fagen.expr import CUDA_SCALAR, emit
from fagen.expr.emit import lowered
from fagen.expr.exponents import assuming, row_scores
from fagen.expr.graph import Graph, Node, below
from fagen.resources import templates_dir

ROWS, KEYS = np.arange(5)[:, None], np.arange(7)[None, :]
SCALE, REFERENCE = 0.25, 1.5
NAMES = {
    **{"b": 0, "h": 1, "hk": 1, "i": ROWS, "q": ROWS + 2, "j": KEYS, "kv": KEYS, "q_len": 5, "kv_len": 7},
    **{"scale": SCALE, "reference": REFERENCE, "first": KEYS[:, :1] + 3, "step": KEYS - 3.0},
}


def _bound(graph: Graph, roots: tuple[Node, ...], raw: np.ndarray) -> dict[Node, object]:
    """Values of names and reads; each read has numbers of its own."""
    names = {**NAMES, "raw": raw, "s": raw * SCALE}
    bound: dict[Node, object] = {}
    for node in below(roots):
        if node.op == "name":
            bound[node] = names[str(node.value)]
        elif node.op == "read":
            rng = np.random.default_rng(node.number)
            shape = (5, 7) if node.per_key else (5, 1)
            bound[node] = rng.integers(0, 4, shape) if node.type == "int" else rng.random(shape) + 0.5
            bound[node] = rng.random(shape) < 0.5 if node.type == "bool" else bound[node]
    return bound


@pytest.mark.parametrize("text", [*scores(60, seed=5), "softcap(50)", "alibi(slope)", "-1e9 if kv % 3 == 0 else s"])
def test_they_are_the_numbers_of_the_score(text: str) -> None:
    graph = Graph()
    score, _ = lowered(graph, variant_of(PARAMS, score=text))
    found = row_scores(graph, score, None)
    roots = tuple(root for root in (score, found.score, found.exponent) if root is not None)
    bound = _bound(graph, roots, np.random.default_rng(1).standard_normal((5, 7)) * 6)
    want = np.broadcast_to(value(score, bound), (5, 7))
    for got, expected in ((found.score, want), (found.exponent, want * math.log2(math.e) - REFERENCE)):
        # Constants are rounded to float32.
        np.testing.assert_allclose(np.broadcast_to(value(got, bound), (5, 7)), expected, rtol=2e-5, atol=2e-5)


def _results(text: str, mask: str | None = None) -> tuple[str, str, str]:
    code = emit(variant_of(PARAMS, score=text, mask=mask), CUDA_SCALAR)
    assert code.row_scores is not None
    pieces = (code.row_scores.score, code.row_scores.exponent, code.row_scores.near)
    named = re.compile(r"const \w+ (\w+) = (.*);")

    def whole(piece: object) -> str:
        if piece is None:
            return ""
        (result,) = piece.results  # type: ignore[attr-defined]
        for line in reversed((*piece.row, *piece.pair)):  # type: ignore[attr-defined]
            match = named.fullmatch(line)
            assert match is not None
            result = re.sub(rf"\b{match[1]}\b", match[2], result)
        return result

    return whole(pieces[0]), whole(pieces[1]), whole(pieces[2])


@pytest.mark.parametrize(
    ("text", "exponent"),
    [
        ("s - slope[h] * (q - kv)", "fma(raw, scale * 1.442695f, fma(static_cast<float>(q - first) - step, "
                                    "slope_at.load(h) * -1.442695f, -reference))"),
        ("softcap(50)", "fma(tanh(raw * scale * 0.02f), 72.13475f, -reference)"),
        ("2 * (s + slope[h]) / 4", "fma(raw, scale * 0.7213475f, slope_at.load(h) * 0.7213475f - reference)"),
        ("-1e9 if q > kv else s", "kv < q ? -1442695000.0f - reference : fma(raw, scale * 1.442695f, -reference)"),
        ("floor(s) + s", "fma(raw, scale * 1.442695f, fma(floor(s), 1.442695f, -reference))"),
        # Terms that cancel, and are exact as they are, stay as they are.
        ("s + (q * 0.5 - kv * 0.5)", "fma(raw, scale * 1.442695f, fma(static_cast<float>(q) * 0.5f - "
                                     "(static_cast<float>(first) + step) * 0.5f, 1.442695f, -reference))"),
        # Numbers that no float32 can hold come of no folding.
        ("s * 1e30 * 1e30", "fma(raw * scale * 1e+30f * 1e+30f, 1.442695f, -reference)"),
    ],
)  # fmt: skip
def test_factors_become_one_for_each_term(text: str, exponent: str) -> None:
    assert _results(text)[1] == exponent


def test_near_0_tanh_is_a_polynomial() -> None:
    assert _results("softcap(50)")[2] == "tanh_near(raw * scale * 0.02f, 72.13475f, -reference)"
    assert _results("s + tanh(s * t + 1) * 3")[2].count("tanh_near(") == 1
    for text in ("s + tanh(floor(s))", "s + tanh(rel[h, kv])", "s * 2", "s if tanh(s) > 0.5 else 0.0"):
        assert _results(text)[2] == ""


def test_the_polynomial_is_tanh() -> None:
    """By the header's numbers, in its order, for a factor that is 1 and one that is not."""
    text = (templates_dir() / "include" / "fagen" / "cuda" / "math.h").read_text(encoding="utf-8")
    body = text[text.index("constexpr float kTanhNear") :].split("}")[0]
    near = float(re.findall(r"kTanhNear = (\S+)f;", body)[0])
    by_header = [float(number) for number in re.findall(r"factor \* (-?\d\S*)f", body)]
    x = np.concatenate([np.geomspace(1e-18, near, 20001), np.linspace(0.01, near, 200001)]).astype(np.float32)
    x[-1] = np.float32(near)

    def fma(a: object, b: object, c: object) -> np.ndarray:
        return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(np.float32)

    for factor in np.float32([1.0, 72.13475]):
        total = np.full_like(x, factor * np.float32(by_header[0]))
        for coefficient in (*by_header[1:], 1.0):
            total = fma(x * x, total, factor * np.float32(coefficient))
        exact = float(factor) * np.tanh(x.astype(np.float64))
        assert np.abs(fma(x, total, 0.0) / exact - 1.0).max() < 2.5 * 2.0**-23


def test_a_mask_says_which_sign_there_is() -> None:
    assert "abs" not in "".join(_results("alibi(slope)", "causal and q < 99"))
    assert "abs(static_cast<float>(q - first) - step)" in _results("alibi(slope)")[0]
    for mask, text in (("kv >= q", "kv - q"), ("kv > q + 2", "kv - q"), ("kv < q", "q - kv"), (None, "abs(kv - q)")):
        graph = Graph()
        score, known = lowered(graph, variant_of(PARAMS, score="s + abs(kv - q)", mask=mask))
        assert assuming(graph, score, known) is lowered(graph, variant_of(PARAMS, score=f"s + ({text})"))[0]
    graph = Graph()
    for mask in ("kv <= q + 1", "kv <= q or kv < 5", "kv <= q + h"):
        score, known = lowered(graph, variant_of(PARAMS, score="s + abs(kv - q)", mask=mask))
        assert assuming(graph, score, known) is score


def test_what_jumps_reads_what_it_read() -> None:
    for text in ("s + floor(kv / 3)", "s + (1.0 if kv * 0.1 > s else 0.0)", "s + kv * kv"):
        assert "step" not in "".join(_results(text))
    assert "step" not in "".join(_results("s + 99999 * kv"))  # float32 would round the sum of two larger numbers
    assert "(static_cast<float>(first * 3) + step * 3.0f)" in _results("s + 3 * kv * slope[h]")[0]
