"""What tuning may try, the file it writes, and what the planner, a build and `fagen explain` make of that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner
from variants import variant

from fagen.build.pipeline import _inputs_digest
from fagen.build.planning import plan_spec, read_spec_tuning
from fagen.build.published import warnings
from fagen.cli import app
from fagen.plan import Plan, plan
from fagen.plan.candidates import candidates
from fagen.plan.tuned import PLAN_VERSION, shape_class, tiles_in_words
from fagen.runtime.variant import Tiles
from fagen.spec import expand, load
from fagen.spec.tuning import TuningEntry, read_tuning, tuning_text
from fagen.toolchain import find_compiler, find_torch

SPEC = """fagen: 1
name: mine
target: sm_90a
defaults: {dtype: bf16, backward: false, head_dim: 128}
variants:
  - {name: causal, mask: causal}
  - {name: full}
"""
AGAIN = "fagen tune mine.yaml"


def entry(spec: Path, name: str = "causal", **fields: object) -> TuningEntry:
    (which,) = (each for each in expand(load(spec)) if each.name == name)
    usual = TuningEntry(
        variant=name,
        shape=shape_class(which),
        target="sm_90a",
        tiles=Tiles(128, 112, 3, "sums"),
        gain=1.04,
        tried=38,
        card="NVIDIA H200 (sm_90), driver 580.1",
        date="2026-11-30",
        milliseconds={"B2,H16,S8192": 3.218},
    )
    return replace(usual, **fields)  # type: ignore[arg-type]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC)
    return path


@pytest.fixture
def planned(spec: Path) -> Callable[[str], Plan]:
    """The plan of the variant `causal` with this text in the tuning file."""

    def plan_with(text: str) -> Plan:
        spec.with_suffix(".tuning.yml").write_text(text)
        loaded = load(spec)
        return plan_spec(loaded, expand(loaded))[0]

    return plan_with


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256)])
def test_candidates_are_legal_and_the_planners_own_is_first(target: str, dims: tuple[int, int]) -> None:
    asked = variant("kv <= q", head_dim=dims[0], value_dim=dims[1], dtype="f16", backward=False)
    found = candidates(asked, target)
    assert plan(replace(asked, tiles=found.tiles[0]), target).forward == plan(asked, target).forward
    assert len(set(found.tiles)) == len(found.tiles) > (target != "sm_75")
    for tiles in found.tiles:
        plan(replace(asked, tiles=tiles), target)
    assert not {each.tiles for each in found.pruned} & set(found.tiles)
    reasons = " ".join(each.why for each in found.pruned)
    assert "registers and has" in reasons or "bytes of shared memory" in reasons


def test_tiles_that_would_spill_are_pruned_with_the_figures() -> None:
    asked = variant(head_dim=64, dtype="bf16", backward=False)
    found = candidates(asked, "sm_90a")
    (pruned,) = (each for each in found.pruned if each.tiles == Tiles(192, 144, 2, "scores"))
    assert pruned.why == "a thread that multiplies needs 172 registers and has 160: it would spill"


def test_on_the_cpu_backward_tiles_are_the_planners_own_unless_named() -> None:
    """Tiles name those of both directions at once, so that none may be what the planner chose."""
    found = candidates(variant("kv <= q", head_dim=64), "cpu", "avx2")
    assert found.tiles[0] == Tiles() and len(found.tiles) > 3
    assert candidates(variant("kv <= q", head_dim=64, backward=False), "cpu", "avx2").tiles[0] != Tiles()


def test_the_file_is_what_was_written(spec: Path) -> None:
    found = (entry(spec), entry(spec, "full", tiles=Tiles(), gain=1.0))
    path = spec.with_suffix(".tuning.yml")
    path.write_text(tuning_text(found, PLAN_VERSION, AGAIN))
    read = read_tuning(path, PLAN_VERSION, AGAIN)
    assert read.entries == found and read.problems == () and not read.damaged
    path.write_text(tuning_text((), PLAN_VERSION, AGAIN))
    assert read_tuning(path, PLAN_VERSION, AGAIN) == replace(read, entries=())


def test_the_planner_takes_the_tiles_and_says_where_they_are_from(spec: Path, planned: Callable[[str], Plan]) -> None:
    plain = planned("version: 1\nentries: []\n")
    tuned = planned(tuning_text([entry(spec)], PLAN_VERSION, AGAIN))
    forward = tuned.forward
    assert (forward.tile_q, forward.tile_kv, forward.stages, forward.turns) == (128, 112, 3, "sums")  # type: ignore[attr-defined]
    assert plain.forward != forward and plain.variant == tuned.variant
    for name in ("groups", "tile_kv", "stages", "turns"):
        assert tuned.why[name].startswith("mine.tuning.yml: the fastest of 38 candidates, {q: 128, kv: 112")
        assert "NVIDIA H200" in tuned.why[name] and "2026-11-30" in tuned.why[name] and "1.04×" in tuned.why[name]
    assert "tuning" not in tuned.why and warnings([{"plan": tuned.to_json()}]) == []


def test_explain_names_the_file(spec: Path) -> None:
    spec.with_suffix(".tuning.yml").write_text(tuning_text([entry(spec)], PLAN_VERSION, AGAIN))
    result = CliRunner().invoke(app, ["explain", "causal", "--spec", str(spec)])
    assert result.exit_code == 0, result.output
    assert "  tile_kv: 112\n      mine.tuning.yml: the fastest of 38 candidates" in result.stdout


def test_tiles_of_the_spec_win(spec: Path, planned: Callable[[str], Plan]) -> None:
    tuning = tuning_text([entry(spec)], PLAN_VERSION, AGAIN)
    spec.write_text(SPEC.replace("mask: causal", "mask: causal, tiles: {kv: 96}"))
    found = planned(tuning)
    assert found.forward.tile_kv == 96 and found.why["tile_kv"] == "the spec's tiles.kv"
    assert found.forward.stages == 2  # type: ignore[attr-defined]


def test_a_variant_of_the_same_shape_has_them_under_any_name(spec: Path, planned: Callable[[str], Plan]) -> None:
    tuning = tuning_text([entry(spec)], PLAN_VERSION, AGAIN)
    spec.write_text(SPEC.replace("name: causal, mask: causal", "name: other, mask: q >= kv and kv <= q"))
    assert planned(tuning).forward.tile_kv != 112
    spec.write_text(SPEC.replace("name: causal, mask: causal", "name: other, mask: kv <= q"))
    assert planned(tuning).forward.tile_kv == 112


def test_tiles_that_are_not_legal_any_more(spec: Path, planned: Callable[[str], Plan]) -> None:
    plain = planned("version: 1\nentries: []\n")
    found = planned(tuning_text([entry(spec, tiles=Tiles(128, 113, 3))], PLAN_VERSION, AGAIN))
    assert found.forward == plain.forward
    told = "causal: its tiles in mine.tuning.yml are left aside: tiles.kv 113 is not whole steps of a product"
    assert found.why["tuning"] == told
    assert warnings([{"plan": found.to_json()}, {"plan": found.to_json()}]) == [told]
    large = planned(tuning_text([entry(spec, tiles=Tiles(128, 176, 4))], PLAN_VERSION, AGAIN))
    assert large.forward == plain.forward and "bytes of shared memory" in large.why["tuning"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("entries: [", "mine.tuning.yml:1:11: left aside: not valid YAML"),
        ("", "mine.tuning.yml:1:1: left aside: the file is empty"),
        ("- a\n", "mine.tuning.yml:1:1: left aside: it is no mapping"),
        ("entries: []\n", "mine.tuning.yml:1:1: left aside: it is measured for no version of the planner"),
        ("version: 0\nentries: []\n", "mine.tuning.yml:1:10: left aside: it is measured for version 0 of the planner"),
        ("version: 1\nentries: 3\n", "mine.tuning.yml:2:10: left aside: `entries` is no list"),
        ("version: 1\nentries: [{}]\n", "mine.tuning.yml:2:11: this entry is left aside: `variant` is missing"),
        ("version: 1\nentries:\n  - {variant: [a]}\n", "mine.tuning.yml:3:5: this entry is left aside: `variant`"),
        ("\x00", "mine.tuning.yml:1:1: left aside: character U+0000"),
    ],
)
def test_a_file_that_is_of_no_use_costs_nothing(text: str, told: str, planned: Callable[[str], Plan]) -> None:
    found = planned(text)
    assert found.forward == planned("version: 1\nentries: []\n").forward
    assert found.why["tuning"].startswith(told)
    assert found.why["tuning"].endswith("measure again: fagen tune mine.yaml)")


def test_a_broken_entry_leaves_the_others(spec: Path, planned: Callable[[str], Plan]) -> None:
    text = tuning_text([entry(spec), entry(spec, "full")], PLAN_VERSION, AGAIN)
    broken = text.replace("tried: 38", "tried: many", 1)
    assert planned(broken).forward.tile_kv != 112 and "`tried` cannot be 'many'" in planned(broken).why["tuning"]
    assert [each.variant for each in read_spec_tuning(str(spec)).entries] == ["full"]
    spec.with_suffix(".tuning.yml").write_bytes(b"\xff\xfe")
    assert read_spec_tuning(str(spec)).damaged


def test_no_figures_that_are_none(spec: Path, planned: Callable[[str], Plan]) -> None:
    text = tuning_text([entry(spec)], PLAN_VERSION, AGAIN)
    for wrong in (".inf", "yes", "true", "[1]"):
        assert "`gain`" in planned(text.replace("gain: 1.040", f"gain: {wrong}")).why["tuning"]
    for wrong in ("{q: a}", "{rows: 3}", "{turns: 3}", "{q: true}"):
        changed = text.replace("{q: 128, kv: 112, stages: 3, turns: sums}", wrong)
        assert "`tiles` cannot have" in planned(changed).why["tuning"]


def test_a_build_sees_that_the_file_has_changed(spec: Path) -> None:
    tools = find_compiler(), find_torch()
    before = _inputs_digest(spec, *tools)
    spec.with_suffix(".tuning.yml").write_text("version: 1\nentries: []\n")
    assert _inputs_digest(spec, *tools) != before


def test_tiles_as_a_spec_has_them() -> None:
    assert tiles_in_words(Tiles(128, 64)) == "{q: 128, kv: 64}"
    assert tiles_in_words(Tiles(64, 64, 2, "none", "somewhere")) == "{q: 64, kv: 64, stages: 2, turns: none}"


def test_turns_of_the_spec(spec: Path) -> None:
    def causal(tiles: str) -> Plan:
        spec.write_text(SPEC.replace("mask: causal", f"mask: causal, tiles: {tiles}"))
        loaded = load(spec)
        return plan_spec(loaded, expand(loaded))[0]

    assert causal("{turns: none}").forward.turns == "none"  # type: ignore[attr-defined]
    assert causal("{turns: sums}").why["turns"] == "the spec's tiles.turns"
    with pytest.raises(Exception, match="tiles.turns sums takes two warpgroups, and tiles.q 64 has one"):
        causal("{q: 64, turns: sums}")
    with pytest.raises(Exception, match="turns"):
        causal("{turns: first}")
