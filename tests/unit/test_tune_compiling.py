"""`fagen tune`: what is compiled, with a stand-in for the compiler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tuned import ROOT, SPEC, Compiler, compiled

from fagen.build.progress import Silent
from fagen.errors import PlanError, UsageError
from fagen.runtime.variant import Tiles
from fagen.spec import expand, load, load_text
from fagen.tune.folder import read_sweep
from fagen.tune.sweep import compile_sweep, spec_text


def test_variants_take_turns_and_the_nearest_candidates_are_first(
    spec: Path, tmp_path: Path, compiler: Compiler
) -> None:
    found = compiled(spec, tmp_path / "c", most=10)
    assert compiler.built == ["causal_0", "full_0", "causal_1", "full_1"]
    causal = found.variants[0]
    assert causal.own == causal.candidates[0].name == "q128_kv128_s2_scores"
    assert len(causal.candidates) == 10 and causal.waiting == 0
    assert causal.pruned["{q: 192, kv: 256, stages: 4, turns: sums}"].startswith("its tiles need")
    assert "10 are nearer to the planner's own choice" in causal.pruned.values()
    assert read_sweep(tmp_path / "c") == found


def test_a_budget_ends_between_modules_and_the_next_run_goes_on(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    found = compiled(spec, tmp_path / "c", most=20, budget=15.0)
    assert compiler.built == ["causal_0", "full_0"]
    assert [(len(each.candidates), each.waiting) for each in found.variants] == [(8, 12), (8, 12)]
    compiler.built.clear()
    again = compiled(spec, tmp_path / "c", most=20, budget=25.0)
    assert compiler.built[:3] == ["causal_0", "full_0", "causal_1"] and len(compiler.built) == 3
    assert [each.waiting for each in again.variants] == [4, 12]


def test_what_does_not_compile_or_spills_is_pruned(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    compiler.refused, compiler.spilling = {"q128_kv144_s2_scores"}, {"q128_kv112_s2_scores"}
    (found,) = compiled(spec, tmp_path / "c", most=8, names=["causal"]).variants
    names = [each.name for each in found.candidates]
    assert len(names) == 6 and not set(names) & (compiler.refused | compiler.spilling)
    assert "it does not compile: too many" in found.pruned["{q: 128, kv: 144, stages: 2, turns: scores}"]
    assert found.pruned["{q: 128, kv: 112, stages: 2, turns: scores}"] == (
        "by ptxas it spills 8 bytes a thread and reads 12 back"
    )


def test_one_variant_leaves_what_is_known_of_the_others(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    compiled(spec, tmp_path / "c", most=2)
    found = compiled(spec, tmp_path / "c", most=3, names=["full"])
    assert {each.variant: len(each.candidates) for each in found.variants} == {"full": 3, "causal": 2}
    (tmp_path / "c" / "sweep.json").write_text("{")
    with pytest.raises(UsageError, match=r"sweep.json cannot be read"):
        read_sweep(tmp_path / "c")
    assert len(compiled(spec, tmp_path / "c", most=2).variants) == 2  # it costs nothing that was compiled


def test_what_there_is_nothing_to_tune_of(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    told: list[str] = []
    spec.write_text(SPEC.replace("mask: causal", "mask: causal, tiles: {q: 128}") + "  - {name: again}\n")
    found = compile_sweep(spec, tmp_path / "c", most=1, progress=Silent, tell=told.append)
    assert [each.variant for each in found.variants] == ["full"]
    assert told == [
        "causal: its tiles are the spec's own; there is nothing to tune",
        "again: as fast as full, whose tiles it gets",
    ]
    spec.write_text(SPEC.replace("head_dim: 128", "head_dim: 128, tiles: {q: 128}"))
    with pytest.raises(PlanError, match="nothing to tune"):
        compiled(spec, tmp_path / "c")
    with pytest.raises(UsageError, match="--variant: no variant other"):
        compiled(spec, tmp_path / "c", names=["other"])


@pytest.mark.parametrize("ready", ["zoo", "h100", "cpu"])
def test_a_spec_of_candidates_means_the_same(ready: str) -> None:
    """With macros, constants and scales written out, every variant is as it was."""
    for ready_made in expand(load(ROOT / "specs" / f"{ready}.yaml")):
        each = replace(ready_made, tiles=Tiles(q=64, turns="none"), backward_tiles=Tiles(kv=128, stages=1))
        text = spec_text("again", "cpu", each.isa, [each])
        (found,) = expand(load_text(text))
        for key, value in vars(each).items():
            if key in ("mask", "score"):
                assert (value and value.resolved) == (getattr(found, key) and getattr(found, key).resolved)
            elif key not in ("line", "column"):
                assert getattr(found, key) == value, (each.name, key)
