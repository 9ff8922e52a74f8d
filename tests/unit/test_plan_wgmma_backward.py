"""What the planner chooses for Hopper's backward kernels: what fits, and how gradients of params are summed."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from fagen.expr import CUDA_SCALAR, emit
from fagen.plan import Plan, context, plan
from fagen.plan.wgmma.backward import Backward, choose_backward
from fagen.plan.wgmma.grads import exact_sums, param_grads
from fagen.render import render
from fagen.runtime.variant import Expression, Param, Tiles, Variant
from fagen.target import TARGETS

CAUSAL = Expression("causal", "kv <= q")
PARAMS = {
    "one": Param("one", "f32", (), grad=True),
    "slope": Param("slope", "f32", ("H",), grad=True),
    "each": Param("each", "f32", ("B", "H"), grad=True),
    "line": Param("line", "f32", ("B", "H", "n"), grad=True),
    "shared": Param("shared", "f32", ("B", "Hk", "n"), grad=True),
    "rel": Param("rel", "f32", ("H", "n"), grad=True),
    "bias": Param("bias", "f32", ("B", "H", "Sq", "Skv"), grad=True),
    "kind": Param("kind", "i32", ("B", "n")),
}


def variant(score: str | None = None, **fields: Any) -> Variant:
    params = tuple(param for name, param in PARAMS.items() if score is not None and name in score)
    given = {"name": "v", "head_dim": 64, "value_dim": 64, "dtype": "bf16", "params": params, **fields}
    return Variant(score=None if score is None else Expression(score, score), **given)


def chosen(made: Plan) -> Backward:
    assert isinstance(made.backward, Backward)
    return made.backward


def rendered(made: Plan) -> str:
    return next(source.text for source in render(made) if source.direction == "backward")


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        ("one", "head"),
        ("slope[h]", "head"),
        ("each[b, h]", "head"),
        ("rel[h, q_len]", "head"),
        ("line[b, h, q]", "query"),
        ("line[b, h, i // 4]", "query"),
        ("line[b, h, kv]", "key"),
        ("line[b, h, kind[b, kv]]", "key"),
        ("rel[h, q - kv + kv_len]", "diagonal"),
        ("rel[h, min(abs(q - kv) // 8, 31)]", "diagonal"),
        ("rel[h, i - j]", "diagonal"),
        ("bias[b, h, i, j]", "pair"),
        ("rel[h, q + kv]", "pair"),
        ("rel[h, kind[b, q] * 3 + kind[b, kv]]", "pair"),
    ],
)
def test_what_is_summed_before_it_is_added(read: str, kind: str) -> None:
    made = variant(f"s + {read}")
    (found,) = param_grads(made, emit(made, CUDA_SCALAR)).reads
    assert found.kind == kind and found.g == "dx"


@pytest.mark.parametrize(
    ("score", "keeps"),
    [
        ("s - slope[h] * abs(q - kv)", False),
        ("0.5 * s + rel[h, q - kv]", False),
        ("s * slope[h]", True),
        ("50 * tanh(s / 50) + rel[h, q - kv]", True),
    ],
)
def test_scores_are_kept_where_a_derivative_is_of_them(score: str, keeps: bool) -> None:
    made = plan(variant(score), "sm_90a")
    assert chosen(made).keeps_scores is keeps
    assert ("store_sums(shared_.scores(group_), s[0]);" in rendered(made)) is keeps


@pytest.mark.parametrize(
    ("score", "dim", "bands", "why"),
    [
        ("s + rel[h, q - kv + kv_len]", 128, 1, "share"),
        ("s + rel[h, q - kv] * rel[h, kv - q]", 128, 2, "share"),
        ("s + rel[h, q - kv]", 256, 1, "share"),
        ("30 * tanh(s / 30) + rel[h, q - kv]", 64, 1, "share"),
        ("30 * tanh(s / 30) + rel[h, q - kv]", 128, 0, "no room"),  # beside scores that are kept
        ("s + rel[h, q - kv] * rel[h, kv - q] + rel[h, abs(q - kv)]", 128, 0, "more than 2"),
        ("s + rel[h, kv]", 128, 0, "no param"),
    ],
)
def test_what_is_read_along_diagonals_is_loaded_once_a_warp(score: str, dim: int, bands: int, why: str) -> None:
    made = plan(variant(score, head_dim=dim, value_dim=dim), "sm_90a")
    assert chosen(made).bands == bands and why in made.why["backward.bands"]
    text = rendered(made)
    assert [text.count(f"rel_at_band{number}.read(n);") for number in (1, 2)] == [2 * (bands > 0), 2 * (bands > 1)]
    assert ("bands.load(p_, pairs_of(now));" in text) == ("bands.store(shared_.bands());" in text) == (bands > 0)


def test_rows_past_the_end_are_left_out_by_what_they_read_along_diagonals() -> None:
    params = (Param("kept", "f32", ("H", "n")),)
    made = plan(variant("s / kept[h, q - kv]", params=params), "sm_90a")
    assert chosen(made).bands == 1 and "const bool admitted = lse != -kInfinity;" in rendered(made)


def test_what_no_score_changes_with_is_not_summed() -> None:
    made = plan(variant("s + floor(one)"), "sm_90a")
    assert chosen(made).sums == {} and "sum_grads" not in rendered(made)
    without = plan(variant("s + floor(one)", params=(Param("one", "f32", ()),)), "sm_90a")
    assert rendered(made) == rendered(without)


@pytest.mark.parametrize(
    ("score", "asked"),
    [
        ("s / kept[b, h, q]", True),
        ("s + log(kv_len - q)", True),
        ("50 * tanh((s - fixed[h] * (q - kv)) / 50)", False),
        ("s / fixed[h]", False),
        ("s + fixed[h] * q", False),
    ],
)
def test_rows_past_the_end_are_left_out_where_their_scores_may_be_no_numbers(score: str, asked: bool) -> None:
    params = (Param("kept", "f32", ("B", "H", "n")), Param("fixed", "f32", ("H",)))
    text = rendered(plan(variant(score, params=params), "sm_90a"))
    assert ("const bool admitted = lse != -kInfinity;" in text) is asked
    assert ("lse == -kInfinity ? kInfinity : lse" in text) is not asked


def test_tiles_fit_for_any_head_dim() -> None:
    device = TARGETS["sm_90a"].device
    assert device is not None
    score = "s * one * slope[h] + each[b, h] + line[b, h, q] + shared[b, hk, kv] + rel[h, q - kv] + bias[b, h, i, j]"
    for head_dim, value_dim in product((8, 40, 64, 72, 96, 128, 136, 192, 248, 256), (8, 72, 128, 192, 256)):
        for dropout in (False, True):
            asked = variant(score, head_dim=head_dim, value_dim=value_dim, mask=CAUSAL, dropout=dropout)
            backward = chosen(plan(asked, "sm_90a"))
            assert backward.keeps_scores and backward.head_sums == 3
            assert backward.shared_bytes <= device.shared_per_block
            assert backward.wide or backward.query_stages == backward.gradient_stages == 2


@pytest.mark.parametrize(
    ("score", "dropout", "rows"),
    [
        ("s - slope[h] * abs(q - kv)", False, 96),
        ("s + rel[h, q - kv]", False, 80),
        ("s + line[b, h, kv]", False, 80),
        ("s + rel[h, q - kv]", True, 64),
    ],
)
def test_tiles_of_narrow_heads_leave_registers_for_what_lanes_sum(score: str, dropout: bool, rows: int) -> None:
    made = plan(variant(score, mask=CAUSAL, dropout=dropout), "sm_90a")
    assert chosen(made).tile_q == rows


def test_sums_that_several_threads_add_to_are_exact_if_they_must_not_depend_on_an_order() -> None:
    score = "s + bias[b, h, i, j] + rel[h, q - kv] + shared[b, hk, kv] + each[b, h] + line[b, h, q]"
    made = variant(score, deterministic=True)
    code = emit(made, CUDA_SCALAR)
    target = TARGETS["sm_90a"]
    backward, why = choose_backward(made, target, code, by_head=False)
    assert backward.sums == {"bias": "atomic", "rel": "exact", "shared": "atomic", "each": "exact", "line": "exact"}
    assert backward.kernels["round"] == (backward.threads, 0)
    assert "one thread" in why["sums.shared"] and "no order" in why["sums.rel"]
    exact = {made.params[index].name for index in exact_sums(made, code)}
    assert exact == {"rel", "each", "line"}
    gradients = {read.param: read.gradient for read in param_grads(made, code).reads}
    assert gradients["rel"].startswith("const ExactGradient<2>") and gradients["bias"].startswith("const Gradient<4>")
    # Read twice, an element may have two threads.
    twice = variant("s + shared[b, hk, kv] * shared[b, hk, q]", deterministic=True)
    assert choose_backward(twice, target, emit(twice, CUDA_SCALAR), by_head=False)[0].sums == {"shared": "exact"}


def test_kernels_are_those_that_a_variant_needs() -> None:
    made = plan(variant("s - slope[h] * abs(q - kv)", mask=CAUSAL), "sm_90a")
    assert list(chosen(made).kernels) == ["kernel", "prepare", "finish", "mend", "find"]
    assert chosen(made).sums == {"slope": "atomic"} and "as threads come" in made.why["backward.sums.slope"]
    assert context(made, "backward")["rounded"] == ()


@pytest.mark.parametrize(
    ("fields", "apart"),
    [
        ({}, True),
        ({"mask": CAUSAL}, False),
        ({"head_dim": 256, "value_dim": 256}, False),
        ({"deterministic": False}, False),
    ],
)
def test_heads_are_side_by_side_where_blocks_that_take_turns_would_begin_at_once(
    fields: dict[str, Any], apart: bool
) -> None:
    made = plan(variant(**{"deterministic": True, **fields}), "sm_90a")
    assert (chosen(made).turns_apart > 0) == apart and made.why["backward.turns_apart"]
    assert ("visits = " in rendered(made)) == apart


def test_blocks_take_turns_if_sums_must_not_depend_on_an_order() -> None:
    for fields in ({"mask": CAUSAL}, {}, {"head_dim": 192, "value_dim": 192}):
        made = plan(variant(deterministic=True, **fields), "sm_90a")
        assert chosen(made).ordered and chosen(made).turns and "deterministic" in made.why["backward.ordered"]
        assert ("mend" in chosen(made).kernels) == ("mask" in fields)
        assert "turns.wait(place_of(tile))" in rendered(made) and "key_block(p, work)" in rendered(made)
        free = plan(variant(**fields), "sm_90a")
        assert not chosen(free).ordered and chosen(free).turns == ("mask" in fields)
        assert "turns.wait" not in rendered(free) and "key_block(p, work)" not in rendered(free)


@pytest.mark.parametrize(("rows", "taken"), [(64, 512), (80, 1024)])
def test_one_warpgroup_draws_which_pairs_of_wide_heads_are_kept_and_hands_that_on(rows: int, taken: int) -> None:
    """A bit a pair, in whole words of each of 128 threads."""
    tiles = Tiles(q=rows, stages=1)
    plain, drops = (
        plan(variant(head_dim=192, value_dim=192, dropout=dropout, backward_tiles=tiles), "sm_90a")
        for dropout in (False, True)
    )
    assert chosen(drops).shared_bytes - chosen(plain).shared_bytes == taken
    text = rendered(drops)
    assert [text.count(call) for call in ("kept.draw(", "kept.store(", "kept.load(")] == [1, 1, 1]
    assert text.count("keep_weights<0, kQueryTiles>(kept, weights);") == 1
    assert text.count("keep_slopes<0, kQueryTiles>(kept, dp, stage);") == 1
    assert "Kept" not in rendered(plain)


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "rows", "keys", "slopes"),
    [
        (192, 192, 64, " + part * kTileKv * kSlabBytes", ""),
        (64, 192, 32, "", " + part * kDqRows * kSlabBytes"),
        (64, 64, 56, "", " + group_ * kDqRows * kSlabBytes"),
    ],
)
def test_warpgroups_have_columns_of_dq_or_of_64_columns_rows(
    head_dim: int, value_dim: int, rows: int, keys: str, slopes: str
) -> None:
    made = plan(variant(head_dim=head_dim, value_dim=value_dim), "sm_90a")
    assert chosen(made).dq_rows == rows
    assert f"ptx::columns_operand(shared_.keys(){keys}, kTileKv * kSlabBytes)" in rendered(made)
    assert f"ptx::rows_operand(shared_.slopes(place){slopes})" in rendered(made)


def test_kernels_without_params_are_as_they_were() -> None:
    text = rendered(plan(variant("50 * tanh(s / 50)", mask=CAUSAL), "sm_90a"))
    for name in ("pair_sums.h", "kExcluded", "sum_grads", "kScores"):
        assert name not in text
