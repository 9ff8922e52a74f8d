"""`fagen tune` of backward kernels, which have tiles of their own on cards: what is tried, measured and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tuned import TIMES, Card, Compiler, compiled, run, swept
from typer.testing import CliRunner
from variants import variant

from fagen.build.planning import plan_spec
from fagen.build.progress import Silent
from fagen.cli import app
from fagen.errors import PlanError
from fagen.plan import Plan, plan
from fagen.plan.candidates import candidates
from fagen.plan.tuned import PLAN_VERSION, shape_class
from fagen.runtime.variant import Tiles, Variant
from fagen.spec import expand, load, load_text
from fagen.spec.tuning import TuningEntry, read_tuning, tuning_text
from fagen.tune import measure as measuring
from fagen.tune.folder import Sweep, read_sweep
from fagen.tune.results import Results
from fagen.tune.sweep import compile_sweep
from fagen.tune.winners import table, winners

SPEC = """fagen: 1
name: mine
target: sm_90a
defaults: {dtype: bf16, head_dim: 64}
variants:
  - {name: causal, mask: causal}
"""
AGAIN = "fagen tune mine.yaml"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC)
    return path


def _trained(**fields: Any) -> Variant:
    return variant("kv <= q", dtype="f16", **fields)


# ---- what is tried ----


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90a", "sm_120"])
@pytest.mark.parametrize("dims", [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)])
def test_candidates_are_legal_and_the_planners_own_is_first(target: str, dims: tuple[int, int]) -> None:
    asked = _trained(head_dim=dims[0], value_dim=dims[1])
    usual = plan(asked, target)
    found = candidates(asked, target, direction="backward")
    first = plan(replace(asked, backward_tiles=found.tiles[0]), target)
    assert first.backward == usual.backward and found.tiles[0] != Tiles()
    assert len(set(found.tiles)) == len(found.tiles) > (target != "sm_75")
    for tiles in found.tiles:
        made = plan(replace(asked, backward_tiles=tiles), target)
        assert made.forward == usual.forward and made.backward is not None
        assert made.backward.tile_q == tiles.q and tiles.kv in (None, made.backward.tile_kv)
    assert not {each.tiles for each in found.pruned} & set(found.tiles) and all(each.why for each in found.pruned)


def test_what_would_spill_is_pruned_with_the_figures() -> None:
    def why(target: str, tiles: Tiles, **fields: Any) -> str:
        found = candidates(_trained(**fields), target, direction="backward")
        (pruned,) = (each for each in found.pruned if each.tiles == tiles)
        return pruned.why

    assert why("sm_90a", Tiles(80, None, 2), head_dim=128) == (
        "a thread that multiplies needs 260 registers and has 240: it would spill"
    )
    assert why("sm_80", Tiles(32, 128, 1), head_dim=160) == (
        "sums of dK and dV take 160 registers of a thread, more than 128: it would spill"
    )
    assert why("sm_80", Tiles(128, 128, 1), head_dim=64).startswith("weights and slopes take 128 registers")
    beside = why("sm_80", Tiles(64, 128, 1), head_dim=128, deterministic=True)
    assert beside == "sums, weights and slopes take 192 registers of a thread, more than 160"
    assert (
        why("sm_80", Tiles(32, 16, 2), head_dim=64) == "16 keys a block are no more than a quarter of the 128 that fit"
    )


def test_other_head_dims_leave_other_tiles() -> None:
    def tried(**fields: Any) -> set[tuple[int | None, int | None]]:
        return {(each.q, each.stages) for each in candidates(_trained(**fields), "sm_90a", direction="backward").tiles}

    assert tried(head_dim=64) == {(rows, 2) for rows in (64, 80, 96, 112)}
    assert tried(head_dim=96) == {(rows, 2) for rows in (32, 48, 64, 80)}
    assert tried(head_dim=256) == {(rows, stages) for rows in (32, 48, 64) for stages in (1, 2)}


def test_a_cpu_has_none_of_its_own() -> None:
    with pytest.raises(ValueError, match="cpu has no tiles of its own for backward"):
        candidates(variant("kv <= q"), "cpu", "avx2", "backward")


@pytest.mark.parametrize(
    ("target", "head_dim", "tiles", "told"),
    [
        ("cpu", 64, Tiles(q=32), "backward_tiles is for GPU targets"),
        ("sm_80", 64, Tiles(q=48), "backward_tiles.q 48 is not built"),
        ("sm_80", 64, Tiles(kv=96), "backward_tiles.kv 96 is not built"),
        ("sm_80", 64, Tiles(stages=3), "backward_tiles.stages 3 is not built"),
        ("sm_80", 64, Tiles(128, 16), "backward_tiles.q 128 is more than the 64 threads that blocks of 16 keys have"),
        ("sm_80", 256, Tiles(64, 128, 2), "its tiles need 297120 bytes of shared memory"),
        ("sm_90a", 128, Tiles(q=40), "backward_tiles.q 40 is not built"),
        ("sm_90a", 64, Tiles(q=48), "backward_tiles.q 48 is less than two warpgroups share"),
        ("sm_90a", 128, Tiles(kv=64), "backward_tiles.kv 64 is not built beside these head dims"),
        ("sm_90a", 128, Tiles(stages=1), "backward_tiles.stages 1 is not built beside these head dims"),
        ("sm_90a", 256, Tiles(q=96), "bytes of shared memory"),
    ],
)
def test_tiles_that_there_are_not(target: str, head_dim: int, tiles: Tiles, told: str) -> None:
    asked = replace(_trained(head_dim=head_dim), backward_tiles=tiles)
    with pytest.raises(PlanError, match=told):
        plan(replace(asked, dtype="f32") if target == "cpu" else asked, target)


def test_tiles_of_the_spec() -> None:
    text = SPEC.replace("mask: causal", "mask: causal, backward_tiles: {q: 96}")
    (which,) = expand(load_text(text))
    assert which.backward_tiles == Tiles(q=96) and Variant.from_json(which.to_json()) == which
    made = plan(which, "sm_90a")
    assert made.backward is not None and made.backward.tile_q == 96
    assert made.why["backward.tile_q"] == "the spec's backward_tiles.q"
    mma = plan(replace(which, backward_tiles=Tiles(kv=64)), "sm_80")
    assert mma.backward is not None and mma.backward.tile_kv == 64
    assert mma.why["backward.tile_kv"] == "the spec's backward_tiles.kv"
    older = {key: value for key, value in which.to_json().items() if key != "backward_tiles"}
    assert Variant.from_json(older).backward_tiles == Tiles()


# ---- what is compiled ----


def test_both_directions_are_swept_and_forward_needs_no_gradients(
    spec: Path, tmp_path: Path, compiler: Compiler
) -> None:
    found = compiled(spec, tmp_path / "c", most=3)
    assert compiler.built == ["causal_0", "causal_b0"]
    forward, backward = found.variants
    assert (forward.direction, backward.direction) == ("forward", "backward")
    assert forward.shape == backward.shape and backward.label == "causal backward"
    assert [each.tiles for each in backward.candidates] == [
        {"q": 112, "stages": 2},
        {"q": 96, "stages": 2},
        {"q": 80, "stages": 2},
    ]
    assert backward.own == "q112_s2" and "3 are nearer to the planner's own choice" in backward.pruned.values()
    for name, gradients in (("causal_0", False), ("causal_b0", True)):
        assert {each.backward for each in expand(load(tmp_path / "c" / f"{name}.yaml"))} == {gradients}
    assert read_sweep(tmp_path / "c") == found


def test_of_backward_its_own_kernels_must_not_spill(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    compiler.spilling = {"q96_s2"}
    compiler.kernel = "fagen_{}_backward"
    _, backward = compiled(spec, tmp_path / "c").variants
    assert [each.name for each in backward.candidates] == ["q112_s2", "q80_s2", "q64_s2"]
    assert backward.pruned["{q: 96, stages: 2}"].startswith("by ptxas it spills 8 bytes")
    compiler.kernel = "fagen_{}"  # forward's: that is not what is tuned
    _, backward = compiled(spec, tmp_path / "d").variants
    assert len(backward.candidates) == 4


def test_what_the_spec_says_of_one_direction_leaves_the_other(spec: Path, tmp_path: Path, compiler: Compiler) -> None:
    told: list[str] = []
    spec.write_text(
        SPEC.replace("mask: causal", "mask: causal, backward_tiles: {q: 96}")
        + "  - {name: again, mask: causal}\n  - {name: third, mask: causal}\n"
    )
    found = compile_sweep(spec, tmp_path / "c", most=1, progress=Silent, tell=told.append)
    assert [each.label for each in found.variants] == ["causal", "again backward"]
    assert told == [
        "causal backward: its tiles are the spec's own; there is nothing to tune",
        "again: as fast as causal, whose tiles it gets",
        "third: as fast as causal, whose tiles it gets",
        "third backward: as fast as again, whose tiles it gets",
    ]


# ---- what is measured ----


def _both() -> Sweep:
    (forward,), (backward,) = swept().variants, swept().variants
    backward.direction = "backward"
    return Sweep("mine", 1, (forward, backward))


def test_directions_have_winners_of_their_own(card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one shape, over one folder of results: where one has been measured, the other has not."""
    asked: list[str] = []
    honest = measuring._call

    def call(module: Any, which: Any, inputs: Any, direction: str) -> Callable[[], object]:
        asked.append(direction)
        card.milliseconds = dict(TIMES) if direction == "forward" else {**TIMES, "slow": 0.25}
        return honest(module, which, inputs, "forward")  # the stand-in has no gradients

    monkeypatch.setattr(measuring, "_call", call)
    results = tmp_path / "r"
    assert run(card, results, _both())
    assert set(asked[:8]) == {"forward"} and set(asked[8:]) == {"backward"} and len(asked) == 16
    forward, backward = winners(Results(results))
    assert (forward.name, forward.label) == ("faster", "causal")
    assert (backward.name, backward.label, backward.direction) == ("slow", "causal backward", "backward")
    assert "causal backward  slow" in table([forward, backward])
    card.samples = []
    assert run(card, results, _both()) and card.samples == []


def test_gradients_are_what_is_timed() -> None:
    """Of one graph again and again: forward is run once."""
    runs: list[str] = []

    class Squares(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            runs.append("forward")
            return q * q

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            runs.append("backward")
            return grad, grad, grad

    of = variant(name="x")
    module: Any = SimpleNamespace(kernels={"x": Squares.apply})
    tensor = torch.ones(1, 2, 1, 4)
    inputs: Any = SimpleNamespace(q=tensor, k=tensor, v=tensor, extras={})
    call = measuring._call(module, of, inputs, "backward")
    call()
    call()
    assert runs == ["forward", "backward", "backward"]
    runs.clear()
    measuring._call(module, of, inputs, "forward")()
    assert runs == ["forward", "forward", "backward"]  # a step, where tiles are of both


# ---- what is written and read ----


def _entry(spec: Path, **fields: Any) -> TuningEntry:
    (which,) = expand(load(spec))
    usual = TuningEntry(
        variant="causal",
        shape=shape_class(which),
        target="sm_90a",
        tiles=Tiles(128, 112, 3, "sums"),
        gain=1.04,
        tried=38,
        card="NVIDIA H200",
        date="2026-11-30",
        milliseconds={"B2,H16,S8192": 3.218},
    )
    return replace(usual, **fields)


def _planned(spec: Path, *entries: TuningEntry) -> Plan:
    spec.with_suffix(".tuning.yml").write_text(tuning_text(entries, PLAN_VERSION, AGAIN))
    loaded = load(spec)
    return plan_spec(loaded, expand(loaded))[0]


def test_the_planner_takes_each_from_its_own_entry(spec: Path) -> None:
    forward = _entry(spec)
    backward = _entry(spec, tiles=Tiles(96, None, 2), gain=1.2, tried=4, direction="backward")
    usual = _planned(spec)
    both = _planned(spec, backward, forward)
    assert both.forward == _planned(spec, forward).forward != usual.forward
    assert both.backward == _planned(spec, backward).backward != usual.backward
    assert both.backward is not None and both.backward.tile_q == 96 and both.variant == usual.variant
    assert both.why["backward.tile_q"].startswith(
        "mine.tuning.yml: the fastest of 4 candidates, {q: 96, stages: 2}, on"
    )
    assert both.why["tile_kv"].startswith("mine.tuning.yml: the fastest of 38") and "tuning" not in both.why
    assert _planned(spec, forward).backward == usual.backward and _planned(spec, backward).forward == usual.forward
    path = spec.with_suffix(".tuning.yml")
    path.write_text(tuning_text([forward, backward], PLAN_VERSION, AGAIN))
    assert read_tuning(path, PLAN_VERSION, AGAIN).entries == (forward, backward)


def test_what_is_of_no_use_in_one_direction_leaves_the_other(spec: Path) -> None:
    forward = _entry(spec)
    wrong = _entry(spec, tiles=Tiles(100, None, 2), direction="backward")
    made = _planned(spec, forward, wrong)
    assert made.forward == _planned(spec, forward).forward and made.backward == _planned(spec).backward
    told = "causal: its backward tiles in mine.tuning.yml are left aside: backward_tiles.q 100 is not built"
    assert _planned(spec, forward, wrong).why["tuning"] == told
    both = _planned(spec, replace(forward, tiles=Tiles(128, 113)), wrong)
    assert both.why["tuning"].endswith(f"; {told}") and "tiles.kv 113" in both.why["tuning"]
    path = spec.with_suffix(".tuning.yml")
    path.write_text(tuning_text([wrong], PLAN_VERSION, AGAIN).replace("direction: backward", "direction: sideways"))
    (problem,) = read_tuning(path, PLAN_VERSION, AGAIN).problems
    assert "`direction` cannot be 'sideways'" in problem.message


def test_backward_tiles_of_the_spec_win(spec: Path) -> None:
    backward = _entry(spec, tiles=Tiles(96, None, 2), direction="backward")
    tuning = tuning_text([backward], PLAN_VERSION, AGAIN)
    spec.write_text(SPEC.replace("mask: causal", "mask: causal, backward_tiles: {q: 80}"))
    spec.with_suffix(".tuning.yml").write_text(tuning)
    loaded = load(spec)
    made = plan_spec(loaded, expand(loaded))[0]
    assert made.backward is not None and made.backward.tile_q == 80


def test_results_from_elsewhere_become_both_entries(
    spec: Path, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `--compile-only` made them and the card's machine measured them."""
    sweep = _both()
    (which,) = expand(load(spec))
    for each in sweep.variants:
        each.shape = shape_class(which)
        each.candidates[:] = [replace(one, tiles={"q": 96, "stages": 2}) for one in each.candidates]
    forward = sweep.variants[0]
    forward.candidates[:] = [replace(one, tiles={"q": 64, "kv": 16}) for one in forward.candidates]
    monkeypatch.setattr(measuring, "_call", lambda module, which, inputs, direction: module.kernels[which.name].run)
    monkeypatch.setattr(card, "kernel", _named(card))
    path = tmp_path / "elsewhere" / "results.jsonl"
    assert run(card, path, sweep)
    result = CliRunner().invoke(app, ["tune", str(spec), "--read", str(path), "--json"])
    assert result.exit_code == 0, result.output
    found = [(each["direction"], each["tiles"]) for each in json.loads(result.stdout)["entries"]]
    assert found == [("forward", "{q: 64, kv: 16}"), ("backward", "{q: 96, stages: 2}")]
    explained = CliRunner().invoke(app, ["explain", "causal", "--spec", str(spec)]).stdout
    assert "mine.tuning.yml: the fastest of 4 candidates, {q: 96, stages: 2}" in explained
    again = CliRunner().invoke(app, ["tune", str(spec), "--read", str(path)])
    assert "mine.tuning.yml: 1 variant; `fagen build" in again.stdout
    assert spec.with_suffix(".tuning.yml").read_text().count("direction: backward") == 1


def _named(card: Card) -> Callable[[str], Any]:
    """Kernels whose run says which they are, as the stand-in card wants to hear."""
    return lambda name: SimpleNamespace(variant=variant(name=name, backward=False), run=lambda: name)
