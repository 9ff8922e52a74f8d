"""Verdicts: what makes one, and what it says."""

from __future__ import annotations

import json

import pytest
import torch
from planted import Planted, variant

from fagen.runtime.check.cases import Case, Tiling, aimed, cases, named
from fagen.runtime.check.report import FAILED, PARTIAL, PASSED, CheckReport, VariantReport, explain, table
from fagen.runtime.check.run import run
from fagen.runtime.variant import Param

TILING = Tiling(((16, 16),))


def test_case_names_are_unique_and_found_again():
    for level in ("auto", "full"):
        found = cases(Tiling(((16, 32), (8, 64))), level)
        names = [case.name for case in found]
        assert len(set(names)) == len(names)
        assert all(named(case.name, Tiling(((16, 32), (8, 64)))) == case for case in found)


def test_an_aimed_case_is_found_by_its_name():
    case = aimed(3, 4100, "peaked", True)
    assert named(case.name, TILING) == case


def test_an_unknown_case_is_an_error_that_lists_them():
    with pytest.raises(KeyError, match="several-tiles"):
        run(Planted(variant()), TILING, seed=0, case="nonsense")


def lengths(found: tuple[Case, ...], axis: str) -> set[int]:
    return {getattr(case, axis) for case in found}


@pytest.mark.parametrize("level", ["auto", "full"])
def test_lengths_lie_on_and_beside_every_tile_s_edges(level):
    tiling = Tiling(((16, 32), (8, 64)))
    found = cases(tiling, level)
    for rows, keys in tiling.sizes:
        assert {0, 1, rows - 1, rows, rows + 1} <= lengths(found, "q_len")
        assert {0, 1, keys - 1, keys, keys + 1} <= lengths(found, "kv_len")
    assert max(lengths(found, "q_len")) > 2 * 16
    assert any(case.q_len > case.kv_len > 0 for case in found)
    assert any(0 < case.q_len < case.kv_len for case in found)
    assert any(case.heads > case.kv_heads > 1 for case in found)


def test_the_same_seed_gives_the_same_report_and_another_gives_another():
    first, again, other = (run(Planted(variant()), TILING, seed=seed, case="tile-plus-1") for seed in (3, 3, 4))
    assert first.worst == again.worst
    assert first.worst != other.worst


def test_a_failure_says_where_it_lies_and_how_to_repeat_it():
    kernel = Planted(variant("mine", mask="causal"), "zero-row")
    report = run(kernel, TILING, seed=5, command="fagen check m -v")
    assert report.verdict == FAILED
    failure = report.failures[0]
    assert failure.case == "several-tiles"
    assert "i=3" in failure.message
    assert "row 3 is number 3 of 16 in query tile 0 (tiles of 16)" in failure.place
    assert report.command == "fagen check m -v mine --seed 5 --case several-tiles"
    again = run(kernel, TILING, seed=5, case="several-tiles")
    assert again.failures == (failure,)


def test_a_kernel_that_raises_fails_with_its_words():
    class Raises(Planted):
        def __call__(self, *args, **kwargs):
            raise ValueError("no such thing")

    report = run(Raises(variant()), TILING, seed=0, case="tile")
    assert report.verdict == FAILED
    assert "ValueError: no such thing" in report.failures[0].message


def test_a_gradient_that_is_missing_fails():
    class NoGradient(Planted):
        def backward(self, *args, **kwargs):
            return {**super().backward(*args, **kwargs), "q": None}

    report = run(NoGradient(variant()), TILING, seed=0, case="tile")
    assert report.verdict == FAILED


def test_a_wrong_dtype_or_shape_fails():
    class Wide(Planted):
        def forward(self, *args, **kwargs):
            o, lse = super().forward(*args, **kwargs)
            return o, lse.double()

    report = run(Wide(variant()), TILING, seed=0, case="tile")
    assert report.verdict == FAILED
    assert report.failures[0].measure == "shape"
    assert "torch.float64" in report.failures[0].message


def test_a_kernel_that_is_not_deterministic_fails_if_it_promised_to_be():
    class Wavers(Planted):
        count = 0

        def forward(self, *args, **kwargs):
            Wavers.count += 1
            o, lse = super().forward(*args, **kwargs)
            return o * (1.0 + (Wavers.count % 2) * 2.0**-23), lse

    assert run(Wavers(variant(dtype="f32")), TILING, seed=0, case="tile").verdict == PASSED
    report = run(Wavers(variant(dtype="f32", deterministic=True)), TILING, seed=0, case="tile")
    assert report.verdict == FAILED
    assert report.failures[0].measure == "repeat"


def test_no_time_makes_a_verdict_partial_and_says_what_was_left_out():
    report = run(Planted(variant(mask="causal")), TILING, seed=0, budget=0.0)
    assert report.verdict == PARTIAL
    assert "several-tiles" in report.skipped
    assert any("no time for: several-tiles" in line for line in explain(report))


def test_a_survivor_makes_a_verdict_partial(monkeypatch):
    from fagen.runtime.check import mutants

    monkeypatch.setattr(mutants, "_kills", lambda judged, mutant: False)
    report = run(Planted(variant(mask="causal")), TILING, seed=0)
    assert report.verdict == PARTIAL
    assert len(report.survivors) == report.mutants > 0
    assert report.killed == 0


def test_mutants_that_only_long_sequences_tell_apart_get_cases_of_their_own():
    kernel = Planted(variant(mask="causal and q - kv < 3000"))
    report = run(kernel, TILING, seed=0)
    assert report.verdict == PASSED
    assert report.killed == report.mutants
    assert any(name.startswith("aimed-") for name in report.cases)


def test_a_kernel_that_goes_wrong_only_in_an_aimed_case_fails():
    kernel = Planted(variant(mask="causal and q - kv < 3000"))
    kernel.scores = Planted(variant(mask="causal and q - kv < 3001")).scores
    report = run(kernel, TILING, seed=0)
    assert report.verdict == FAILED
    assert report.failures[0].case.startswith("aimed-")


def test_mutants_that_are_the_same_function_are_not_counted():
    report = run(Planted(variant(mask="causal", align="top_left")), TILING, seed=0)
    assert report.equivalent > 0  # i <= kv for q <= kv
    assert report.killed == report.mutants


def test_reports_round_trip_through_json():
    for fault in (None, "nan-row", "no-rescale"):
        report = run(Planted(variant(mask="causal"), fault), TILING, seed=0, case="tile-plus-1", command="check")
        text = json.dumps(report.to_json(), allow_nan=False)
        again = VariantReport.from_json(json.loads(text))
        assert again.to_json() == report.to_json()
        assert again.verdict == report.verdict


def test_the_table_names_every_variant_and_every_failure():
    passed = run(Planted(variant("good")), TILING, seed=0, case="tile")
    failed = run(Planted(variant("bad"), "swap-rows"), TILING, seed=0, case="tile")
    text = table(CheckReport((passed, failed), 0, "auto"))
    assert "good" in text and "bad: failed" in text and failed.failures[0].message in text
    assert CheckReport((passed, failed), 0, "auto").verdict == FAILED


def test_params_are_drawn_so_that_expressions_do_something():
    from fagen.runtime.check.inputs import draw
    from fagen.runtime.reference import mask_matrix, trees

    params = (Param("doc", "i32", ("B", "n")), Param("left", "i32", ("B",)), Param("on", "bool", ("B", "n")))
    for text in ("doc[b, q] == doc[b, kv]", "kv >= left[b]", "on[b, kv]", "kv < left[b] or on[b, q]"):
        read = tuple(param for param in params if param.name in text)
        kernel = variant(mask=text, params=read)
        shares = []
        for case in cases(TILING):
            if case.q_len * case.kv_len > 100 and case.batch:
                inputs = draw(kernel, [tree for tree in trees(kernel) if tree], case, 0)
                shape = case.batch, case.heads, case.q_len, case.kv_len
                mask = mask_matrix(kernel, *shape, inputs.params).expand(shape)
                shares.append(float(mask.double().mean()))
        assert any(0.1 < share < 0.9 for share in shares), text


@pytest.mark.parametrize("text", ["doc[b, doc[b, kv]] <= 2", "doc[b, at[b, kv]] <= at[b, doc[b, q] + 1]"])
def test_params_that_are_read_at_each_other_are_long_enough(text):
    """At itself, or each at the other: neither can be drawn before."""
    from fagen.runtime.check.inputs import draw
    from fagen.runtime.reference import mask_matrix, trees

    params = tuple(Param(name, "i32", ("B", "n")) for name in ("doc", "at") if name in text)
    kernel, case = variant(mask=text, params=params), named("several-tiles", TILING)
    inputs = draw(kernel, [tree for tree in trees(kernel) if tree], case, 0)
    assert all(tensor.max() < tensor.shape[1] for tensor in inputs.params.values())
    mask = mask_matrix(kernel, case.batch, case.heads, case.q_len, case.kv_len, inputs.params)
    assert mask.any() and not mask.all()


def test_seeds_give_inputs_that_do_not_depend_on_other_cases():
    from fagen.runtime.check.inputs import draw

    case = cases(TILING)[3]
    first = draw(variant(), [], case, 7)
    draw(variant(), [], cases(TILING)[0], 7)
    again = draw(variant(), [], case, 7)
    assert torch.equal(first.q, again.q)
