"""The tile test and loop limits against brute force: always sound; exact for macros and affine conditions.

Every case draws lengths, alignment, params and tiles; params' extents are drawn apart from the lengths, so that tiles
also read outside them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import expressions
import numpy as np
import pytest
from expr_grid import Grid, variant_of
from expr_random import BATCH, HEADS, PARAMS, affine_mask, arrays, as_floats, masks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fagen.expr.bounds import Span, Tri
from fagen.expr.evaluate import MaskBounds, Work
from fagen.runtime.language import Node, parse
from fagen.runtime.variant import Param


class Scene:
    """A mask over one batch entry and head, its bounds, and the truth of every pair."""

    def __init__(self, params: dict[str, Param], mask: str | Node, align: str, work: Work):
        variant = variant_of(params, mask=mask, align=align)
        self.bounds = MaskBounds(variant)
        assert variant.mask is not None
        self.text = variant.mask.resolved
        tree = parse(self.text, params=params, expect="mask")
        fields = {name: getattr(work, name) for name in ("b", "h", "hk", "q_len", "kv_len", "params")}
        self.truth = Grid(**fields, align=align).value(tree)
        self.work = work
        self.first = work.kv_len - work.q_len if align == "bottom_right" else 0

    def test(self, rows: range, keys: range) -> tuple[Tri, Tri]:
        """What is true of a tile, and what the tile test says."""
        box = self.truth[rows.start : rows.stop, keys.start : keys.stop]
        exact = Tri.ALL if box.all() else Tri.SOME if box.any() else Tri.NONE
        found = self.bounds.tile_test(self.work, self.positions(rows), Span(keys.start, keys.stop - 1))
        assert found in (exact, Tri.SOME), (self.text, self.work, rows, keys)
        return exact, found

    def positions(self, rows: range) -> Span:
        return Span(rows.start + self.first, rows.stop - 1 + self.first)

    def check_limits(self, rows: range, keys: range) -> None:
        for ranges, needed, length in (
            (
                self.bounds.key_ranges(self.work, self.positions(rows)),
                self.truth[rows.start : rows.stop].any(0),
                self.work.kv_len,
            ),
            (
                self.bounds.query_ranges(self.work, Span(keys.start, keys.stop - 1)),
                self.truth[:, keys.start : keys.stop].any(1),
                self.work.q_len,
            ),
        ):
            covered = np.zeros(length, bool)
            for first, last in ranges.ranges:
                assert 0 <= first < last <= length
                covered[first:last] = True
            assert covered[needed].all(), (self.text, self.work, rows, keys)


def tiles(rng: np.random.Generator, work: Work, count: int) -> Iterator[tuple[range, range]]:
    for _ in range(count):
        row, key = int(rng.integers(work.q_len)), int(rng.integers(work.kv_len))
        height, width = (int(x) for x in rng.integers(1, 17, 2))
        yield range(row, min(row + height, work.q_len)), range(key, min(key + width, work.kv_len))


def drawn(rng: np.random.Generator, longest: int = 40) -> Work:
    q_len, kv_len, n = (int(x) for x in rng.integers(1, longest, 3))
    b, h, hk = (int(rng.integers(x)) for x in (BATCH, HEADS, HEADS))
    return Work(b, h, hk, q_len, kv_len, arrays(rng, q_len, kv_len, n))


def plain(work: Work) -> Work:
    """The same with params as floats."""
    return Work(work.b, work.h, work.hk, work.q_len, work.kv_len, as_floats(dict(work.params)))


ALIGNS = ("bottom_right", "top_left")


def language_arrays(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """Entries for tests/expressions.py's params."""
    return {
        "n": np.asarray(rng.integers(-3, 12)),
        "t": np.asarray(rng.normal(), np.float32),
        "flag": np.asarray(rng.integers(2) == 1),
        "ids": np.sort(rng.integers(-1, 4, (4, n)), 1),
        "at": rng.integers(-2, n + 2, n),
        "on": rng.integers(3, size=(4, n)) == 0,
        "slope": rng.normal(size=4).astype(np.float32),
        "f": rng.normal(size=(4, 4, n)).astype(np.float32),
    }


@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(expressions.masks(3), st.integers(0, 2**20), st.sampled_from(ALIGNS))
def test_masks_from_the_whole_grammar_are_sound(mask: Node, seed: int, align: str) -> None:
    rng = np.random.default_rng(seed)
    q_len, kv_len, n = (int(x) for x in rng.integers(1, 40, 3))
    work = Work(*(int(x) for x in rng.integers(0, 4, 3)), q_len, kv_len, language_arrays(rng, n))
    scene = Scene(expressions.PARAMS, mask, align, work)
    for rows, keys in tiles(rng, work, 8):
        scene.test(rows, keys)
        scene.check_limits(rows, keys)


@pytest.mark.parametrize("seed", range(8))
def test_random_masks_are_sound_and_mostly_decided(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts: Counter[tuple[Tri, Tri]] = Counter()
    for number, mask in enumerate(masks(40, seed)):
        for _ in range(2):
            work = drawn(rng)
            scene = Scene(PARAMS, mask, ALIGNS[number % 2], plain(work))
            for rows, keys in tiles(rng, work, 6):
                counts[scene.test(rows, keys)] += 1
                scene.check_limits(rows, keys)
    undecided = counts[Tri.NONE, Tri.SOME] + counts[Tri.ALL, Tri.SOME]
    assert undecided < 0.3 * (counts.total() - counts[Tri.SOME, Tri.SOME])


@pytest.mark.parametrize("seed", range(8))
def test_and_or_not_of_affine_conditions_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source = random.Random(seed)
    for number in range(40):
        mask = affine_mask(source, source.randint(0, 3))
        for _ in range(2):
            work = drawn(rng)
            scene = Scene(PARAMS, mask, ALIGNS[number % 2], plain(work))
            for rows, keys in tiles(rng, work, 6):
                exact, found = scene.test(rows, keys)
                assert found is exact, (mask, work, rows, keys)
                scene.check_limits(rows, keys)


DOCUMENTS = {
    "sorted": lambda rng, n: np.sort(rng.integers(0, 6, n)),
    "sorted from 1": lambda rng, n: np.sort(rng.integers(1, 6, n)),
    "descending": lambda rng, n: -np.sort(rng.integers(0, 6, n)),
    "padded": lambda rng, n: np.where(np.arange(n) < rng.integers(0, n + 1), np.sort(rng.integers(1, 6, n)), 0),
    "images": lambda rng, n: np.repeat(rng.permutation(8), rng.integers(0, n, 8))[:n],
}


def entries(make: Callable[[np.random.Generator, int], Any], rng: np.random.Generator, n: int) -> dict[str, Any]:
    ids = np.zeros(n, np.int32)
    found = make(rng, n)
    ids[: len(found)] = found
    lengths = rng.integers(-2, n + 5, 1).astype(np.int32)
    return {"ids": ids[None], "left": lengths, "glob": rng.integers(0, n, (1, n)) == 0, "at": rng.permutation(n)}


# Masks whose empty tiles are all found, however tiles and documents lie; with the documents they read.
EXACT = {
    "causal": ["sorted"],
    "window(20, 5)": ["sorted"],
    "window(-1, 3)": ["sorted"],
    "causal and q - kv < 20": ["sorted"],
    "document(ids)": list(DOCUMENTS),
    "causal and document(ids)": ["sorted", "sorted from 1", "descending", "padded"],
    "causal or kv < left[b]": ["sorted"],
    "causal and kv >= left[b]": ["sorted"],
    "kv < left[b]": ["sorted"],
    "abs(q - kv) <= 20 or glob[b, q] or glob[b, kv]": ["sorted"],
    "(causal and q - kv < 20) or (ids[b, q] == ids[b, kv] and ids[b, kv] > 0)": ["padded", "images"],
    "kv // 16 <= q // 16": ["sorted"],
    "abs(q // 8 - kv // 8) <= 2": ["sorted"],
    "at[j] <= at[i]": ["sorted"],
}


@pytest.mark.parametrize("align", ALIGNS)
@pytest.mark.parametrize("mask", EXACT)
def test_no_empty_tile_of_a_known_mask_is_visited(mask: str, align: str) -> None:
    rng = np.random.default_rng(3)
    tile = 16
    for documents in EXACT[mask]:
        for number in range(12):
            q_len, kv_len = (int(x) for x in rng.integers(1, 130, 2))
            if number % 3 == 0:
                q_len = kv_len
            n = max(q_len, kv_len) if "at[" in mask else kv_len
            work = Work(0, 0, 0, q_len, kv_len, entries(DOCUMENTS[documents], rng, n))
            scene = Scene(PARAMS, mask, align, work)
            for row in range(0, q_len, tile):
                rows = range(row, min(row + tile, q_len))
                visited = scene.bounds.key_ranges(work, scene.positions(rows)).ranges
                for key in range(0, kv_len, tile):
                    keys = range(key, min(key + tile, kv_len))
                    exact, found = scene.test(rows, keys)
                    scene.check_limits(rows, keys)
                    assert found is exact or exact is Tri.ALL, (documents, work, rows, keys)
                    met = any(first < keys.stop and keys.start < last for first, last in visited)
                    assert met or exact is Tri.NONE


@pytest.mark.parametrize(
    ("mask", "keys", "queries"),
    [
        ("causal", ((0, 48),), ((0, 60),)),
        ("window(8, 0)", ((24, 48),), ((0, 20),)),
        ("window(8, 3)", ((24, 51),), ((0, 20),)),
        ("causal and q - kv < 4", ((29, 48),), ((0, 15),)),
        ("abs(q - kv) > 10", ((0, 37), (43, 80)), ((0, 1), (11, 60))),
        ("kv < 10 or kv >= 70", ((0, 10), (70, 80)), ()),
        ("q >= 40 and kv < 5", ((0, 5),), ()),
        ("q >= 70 and kv < 5", (), ()),
        ("kv // 16 == q // 16", ((32, 48),), ((0, 12),)),
        ("q + kv < 60", ((0, 28),), ((0, 20),)),
        ("3 * kv < q", ((0, 16),), ((0, 60),)),
        ("true", ((0, 80),), ((0, 60),)),
        ("false", (), ()),
    ],
)
def test_limits_in_closed_form(mask: str, keys: tuple[Any, ...], queries: tuple[Any, ...]) -> None:
    """60 rows at positions 20 to 79, of which 32 to 47 are asked for; 80 keys, of which 20 to 31."""
    work = Work(0, 0, 0, 60, 80, {"c": np.asarray(0)})
    bounds = MaskBounds(variant_of(PARAMS, mask=mask))
    assert bounds.key_ranges(work, Span(32, 47)).ranges == keys
    if mask not in ("q + kv < 60", "3 * kv < q"):
        assert bounds.query_ranges(work, Span(20, 31)).ranges == queries


def test_no_mask_admits_everything() -> None:
    bounds = MaskBounds(variant_of(PARAMS, score="s"))
    work = Work(0, 0, 0, 7, 9, {})
    assert bounds.tile_test(work, Span(2, 8), Span(0, 8)) is Tri.ALL
    assert bounds.key_ranges(work, Span(2, 8)).ranges == ((0, 9),)
    assert bounds.query_ranges(work, Span(0, 8)).ranges == ((0, 7),)


@pytest.mark.parametrize(
    "mask",
    [
        " and ".join(f"(q - kv != {n} or kv > {n})" for n in range(12)),
        " or ".join(f"(q - kv == {n} and kv % {n + 2} == 1)" for n in range(40)),
        "abs(abs(abs(abs(abs(q - kv) - 9) - 5) - 3) - 2) <= 1",
        "min(min(q, kv), min(kv + 3, min(q - 7, min(kv - 2, 4)))) >= max(max(q - 30, kv - 20), 1)",
    ],
)
def test_masks_with_very_many_cases_stay_sound_and_small(mask: str) -> None:
    rng = np.random.default_rng(0)
    work = plain(drawn(rng))
    scene = Scene(PARAMS, mask, "bottom_right", work)
    for rows, keys in tiles(rng, work, 30):
        scene.test(rows, keys)
        scene.check_limits(rows, keys)
