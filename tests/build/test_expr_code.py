"""Emitted code, compiled: scores bit for bit, masks, gradients; the tile test and limits as Python has them."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from expr_cpp import Compiled, Job, can_run, compile_library, render
from expr_grid import Grid, variant_of
from expr_random import BATCH, HEADS, PARAMS, arrays, as_floats, masks, scores

from fagen.expr import emit
from fagen.expr.bounds import Span
from fagen.expr.evaluate import MaskBounds, Work
from fagen.runtime.language import parse
from fagen.runtime.variant import Variant

ALIGNS = ("bottom_right", "top_left")

# Each kind of read, of int, and of function at least once.
SCORES = [
    "softcap(5)",
    "alibi(slope)",
    "s + rel[h, q - kv + kv_len]",
    "s + bias[b, h, i, j]",
    "s + f[b, h, q] - f[b, h, kv]",
    "s + half[kv] * half[q]",
    "s * t + (f[b, h, kv] if s > 0 else slope[h])",
    "s + rel[h, at[q - kv + kv_len]]",
    "sigmoid(s) * s + rel[h, 20 - kv] + sqrt(abs(s) + 1)",
    "abs(s) ** 2.5 + s ** 3 if s > 0 else -s // 0.7",
    "min(s, slope[h]) + max(s, t) - log(1 + exp(s)) + softplus(s)",
    "s if causal else 3",
    "sin(s) + cos(s) * exp2(s / 2) - log2(abs(s) + 1) + tanh(s)",
    "s + abs(q * q * q - kv * kv * kv) / 1000",
    "s + (wide[b] % 7) * kv // 3 + kv // -5 - q % 3",
    "slope[h]",
    "s * heat[b, h] + tanh(heat[b, h])",
    "s + rel[h, kv + at[q]] * rel[h, at[q] - kv]",
    "s * (2 if flag == glob[b, kv] else 3)",
]
MASKS = [
    "causal and document(ids)",
    "window(5, 3) or glob[b, q] or glob[b, kv]",
    "kv < kv_len - q_len or tree[b, i, kv - (kv_len - q_len)]",
    "ids64[b, q] == ids64[b, kv] and kv < wide[b]",
    "abs(q // 4 - kv // 4) <= 1 and abs(q % 4 - kv % 4) <= 1",
    "f[b, h, kv] > 0.5 * t or at[j] <= at[i]",
    "q * q * q * 1000 > kv * kv * 70000 * kv_len",
    "not (kv % 3 == q % 3) if flag else (ids[b, q] == ids[b, kv] and ids[b, kv] > 0)",
    "2 * q >= 3 * kv and q + kv < 50 and q - kv != 4",
]


def known_variants() -> list[Variant]:
    count = max(len(SCORES), len(MASKS))
    pairs = [(MASKS[n % len(MASKS)] if n % 3 else None, SCORES[n % len(SCORES)]) for n in range(count)]
    pairs += [(mask, None) for mask in MASKS]
    return [variant_of(PARAMS, mask, score, ALIGNS[n % 2]) for n, (mask, score) in enumerate(pairs)]


def draw(rng: np.random.Generator, variant: Variant, longest: int = 45) -> tuple[Job, Grid, Work]:
    q_len, kv_len, n = (int(x) for x in rng.integers(1, longest, 3))
    b, h, hk = (int(rng.integers(x)) for x in (BATCH, HEADS, HEADS))
    params = arrays(rng, q_len, kv_len, n)
    grid = Grid(b, h, hk, q_len, kv_len, params, variant.align)
    return Job(b, h, hk, q_len, kv_len, params), grid, Work(b, h, hk, q_len, kv_len, as_floats(params))


def check_scores(compiled: Compiled, rng: np.random.Generator, exactly: bool, trials: int = 4) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-42, 3e38, -1e-30, 1.0], np.float32)
    for n, variant in enumerate(compiled.variants):
        for _ in range(trials):
            job, grid, _ = draw(rng, variant)
            s = (rng.normal(size=(job.q_len, job.kv_len)) * 4).astype(np.float32)
            if exactly:
                s = np.where(rng.random(s.shape) < 0.2, rng.choice(special, s.shape), s)
            grid.s = s
            found = compiled.score(n, job, s)
            expected = s if variant.score is None else grid.value(parsed(variant, "score"))
            if exactly:
                # Only where it is NaN may the bits differ: its sign and payload are nobody's.
                same = found[0].view(np.uint32) == np.ascontiguousarray(expected, np.float32).view(np.uint32)
                assert (same | (np.isnan(found[0]) & np.isnan(expected))).all(), (variant.score, job)
            else:
                np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-5, err_msg=str(variant.score))
            if variant.mask is not None:
                assert np.isin(found[1], (0, -1)).all()
                np.testing.assert_array_equal(found[1] == -1, grid.value(parsed(variant, "mask")), str(variant.mask))


def parsed(variant: Variant, expect: str) -> Any:
    expression = variant.score if expect == "score" else variant.mask
    assert expression is not None
    return parse(expression.resolved, params=PARAMS, expect=expect)  # type: ignore[arg-type]


def check_bounds(compiled: Compiled, rng: np.random.Generator, trials: int) -> None:
    for n, variant in enumerate(compiled.variants):
        bounds = MaskBounds(variant)
        for _ in range(trials):
            job, grid, work = draw(rng, variant)
            truth = np.ones((job.q_len, job.kv_len), bool)
            if variant.mask is not None:
                truth = grid.value(parsed(variant, "mask"))
            first = job.kv_len - job.q_len if variant.align == "bottom_right" else 0
            for row, key, height, width in boxes(rng, job, 5):
                q, kv = Span(first + row, first + row + height - 1), Span(key, key + width - 1)
                found = compiled.tile_test(n, job, q, kv)
                assert found == bounds.tile_test(work, q, kv), (variant.mask, job, q, kv)
                box = truth[row : row + height, key : key + width]
                assert {"none": not box.any(), "all": box.all(), "some": True}[found.value]
                assert compiled.key_ranges(n, job, q) == bounds.key_ranges(work, q), variant.mask
                assert compiled.query_ranges(n, job, kv) == bounds.query_ranges(work, kv), variant.mask


def boxes(rng: np.random.Generator, job: Job, count: int) -> Iterator[tuple[int, int, int, int]]:
    for _ in range(count):
        row, key = int(rng.integers(job.q_len)), int(rng.integers(job.kv_len))
        height, width = (int(x) for x in rng.integers(1, 17, 2))
        yield row, key, min(height, job.q_len - row), min(width, job.kv_len - key)


def gradient(grid: Grid, variant: Variant, name: str, step: float) -> Any:
    """d x / d s, or d (sum of dx · x) / d entry of a param, in float64 by finite differences."""
    tree = parsed(variant, "score")
    ends = []
    for by in (step, -step):
        moved = dataclasses.replace(grid, real=np.float64)
        moved.s = grid.s.astype(np.float64) + (by if name == "s" else 0)
        ends.append(moved.value(tree))
    return (ends[0] - ends[1]) / (2 * step)


def check_gradients(compiled: Compiled, rng: np.random.Generator) -> None:
    step = 1e-6
    for n, variant in enumerate(compiled.variants):
        if variant.score is None or "//" in variant.score.text:
            continue  # // has derivative 0 by definition, not by differences
        job, grid, _ = draw(rng, variant)
        grid.s = (rng.normal(size=(job.q_len, job.kv_len)) * 3).astype(np.float32)
        found = compiled.grad(n, job, grid.s)
        expected = gradient(grid, variant, "s", step)
        assert np.isclose(found[1], expected, rtol=2e-3, atol=2e-3).mean() > 0.99, variant.score
        dx = rng.normal(size=grid.s.shape).astype(np.float32)
        tree = parsed(variant, "score")
        params = {
            name: np.asarray(array, np.float64) if np.asarray(array).dtype.kind == "f" else array
            for name, array in as_floats(dict(job.params)).items()
        }
        for name, array in compiled.scatter(n, job, grid.s, dx).items():
            entries = rng.permutation(array.size)[:12]
            for entry in entries:
                sums = []
                for by in (step, -step):
                    moved = params[name].copy()
                    moved.reshape(-1)[entry] += by
                    there = dataclasses.replace(grid, real=np.float64, params=params | {name: moved})
                    there.s = grid.s.astype(np.float64)
                    sums.append(float((there.value(tree) * dx).sum()))
                difference = (sums[0] - sums[1]) / (2 * step)
                assert array.reshape(-1)[entry] == pytest.approx(difference, rel=5e-3, abs=5e-3), (variant.score, name)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    isa = next(isa for isa in ("avx512", "avx2", "portable") if can_run(isa))
    return Compiled(known_variants(), tmp_path_factory.mktemp("known"), "g++", isa, "-ffp-contract=fast")


def test_known_scores_and_masks(known: Compiled) -> None:
    check_scores(known, np.random.default_rng(1), exactly=False)


def test_known_gradients(known: Compiled) -> None:
    check_gradients(known, np.random.default_rng(2))


def test_known_tile_tests_and_limits(known: Compiled) -> None:
    check_bounds(known, np.random.default_rng(3), trials=6)


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_every_isa_and_compiler_without_a_warning(compiler: str, isa: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    variants = known_variants()[:: 3 if isa == "portable" else 4]
    if not can_run(isa):
        compile_library(render(variants, [emit(variant) for variant in variants], True), tmp_path, compiler, isa)
        pytest.skip(f"compiled, but this machine has no {isa}")
    compiled = Compiled(variants, tmp_path, compiler, isa)
    check_scores(compiled, np.random.default_rng(4), exactly=False, trials=2)
    check_bounds(compiled, np.random.default_rng(5), trials=2)


def test_random_masks_in_cpp_are_those_in_python_and_sound(tmp_path: Path) -> None:
    texts = masks(200, seed=17)
    variants = [variant_of(PARAMS, mask=text, align=ALIGNS[n % 2]) for n, text in enumerate(texts)]
    # Without optimising: it is compiled in half the time, and what is tested is what was written.
    compiled = Compiled(variants, tmp_path, "g++", "portable", "-O0", snippets=False)
    check_bounds(compiled, np.random.default_rng(6), trials=3)


def test_random_arithmetic_is_bit_for_bit_that_of_float32(tmp_path: Path) -> None:
    exact = [text for text in scores(400, seed=23, depth=4) if not re.search(r"tanh|sig|soft|exp|sin|log|\*\*", text)]
    texts = masks(40, seed=29)
    variants = [variant_of(PARAMS, texts[n], text, ALIGNS[n % 2]) for n, text in enumerate(exact[:24])]
    check_scores(Compiled(variants, tmp_path), np.random.default_rng(7), exactly=True, trials=3)
