"""`fagen explain`: the tile map against the mask itself, the costs against sums done by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from expr_random import PARAMS
from typer.testing import CliRunner
from variants import variant

from fagen.build.planning import plan_spec
from fagen.cli import app
from fagen.costs import ProblemSize, costs, operations
from fagen.explain import explain
from fagen.plan import Plan, plan
from fagen.resources import specs_dir
from fagen.size import parse_size
from fagen.spec import expand, load
from fagen.tilemap import FULL, IN_VAIN, PARTIAL, SKIPPED, tile_map

READY = {variant.name: variant for variant in expand(load(specs_dir() / "cpu.yaml"))}
RUN = CliRunner()
SIZES = ("S1024", "S1000", "Sq300,Skv2000", "Sq2000,Skv300", "S97", "Sq1,Skv777")


def _plan(name: str) -> Plan:
    return plan(READY[name], "cpu", isa="avx2")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in READY if not name.endswith("_bf16")])
def test_ready_specs_visit_no_tile_in_vain(name: str, size: str) -> None:
    assert tile_map(_plan(name), parse_size(size)).count(IN_VAIN) == 0


def test_the_map_of_a_causal_mask() -> None:
    found = tile_map(_plan("causal_d64"), ProblemSize(q_len=1000, kv_len=1000))
    tile_q, tile_kv = found.tile_q, found.tile_kv
    for y, row in enumerate(found.rows):
        first, last = y * tile_q, min(y * tile_q + tile_q, 1000) - 1
        for x, kind in enumerate(row):
            near, far = x * tile_kv, min(x * tile_kv + tile_kv, 1000) - 1
            assert kind == (SKIPPED if near > last else FULL if far <= first else PARTIAL)
    assert found.admitted == 1000 * 1001 / 2
    assert found.count(FULL) + found.count(PARTIAL) + found.count(SKIPPED) == found.total


def test_an_empty_batch_costs_nothing() -> None:
    found = explain(_plan("documents_d64"), ProblemSize(batch=0, q_len=300, kv_len=300))
    assert found.map.count(PARTIAL) > 0
    assert all(cost.operations == cost.moved == cost.extra == 0 for cost in found.costs)


def test_the_command() -> None:
    words = ["explain", "window_d64", "--spec", str(specs_dir() / "cpu.yaml"), "--size", "B2,H8,Hk4,Sq300,Skv500"]
    text = RUN.invoke(app, words)
    assert text.exit_code == 0 and "forward, at B 2, H 8, Hk 4, Sq 300, Skv 500" in text.stdout
    found = json.loads(RUN.invoke(app, [*words, "--json"]).stdout)
    assert found["variant"]["name"] == "window_d64" and found["size"]["kv_len"] == 500
    words[1] = "windw_d64"
    wrong = RUN.invoke(app, words)
    assert wrong.exit_code == 2 and "no variant windw_d64 in " in wrong.stderr
    assert RUN.invoke(app, [*words[:4], "--size", "S1,S2"]).exit_code == 2


def test_a_name_that_ready_specs_share_is_found_where_it_can_be_planned(tmp_path: Path) -> None:
    found = RUN.invoke(app, ["explain", "causal_d64", "--out", str(tmp_path)])
    assert found.exit_code == 0 and "causal_d64, of spec cpu, for cpu" in found.stdout
    for_cards = RUN.invoke(app, ["explain", "causal_d256", "--out", str(tmp_path)])
    assert for_cards.exit_code == 0 and "causal_d256, of spec a100, for sm_80" in for_cards.stdout
    b200 = str(specs_dir() / "b200.yaml")
    refused = RUN.invoke(app, ["explain", "causal_d256", "--spec", b200, "--out", str(tmp_path)])
    assert refused.exit_code == 3 and "not built yet" in refused.stderr


def publish(folder: Path, spec: str, name: str) -> dict[str, dict[str, int]]:
    """A module of one variant, as far as its manifest goes; returns what its kernels are said to take."""
    loaded = load(specs_dir() / f"{spec}.yaml")
    [found] = plan_spec(loaded, [variant for variant in expand(loaded) if variant.name == name])
    taken = {f"fagen_{name}_forward": {"registers": 199, "spill_stores": 0, "spill_loads": 0}}
    entry = {"variant": found.variant.to_json(), "plan": found.to_json(), "resources": taken}
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(
        json.dumps({"fagen": "0", "name": folder.name, "target": found.target, "variants": [entry]})
    )
    return taken


def test_modules_with_the_same_variant(tmp_path: Path) -> None:
    """That for the CPU comes first; others are reached by their folders or, if they hold its plan, by their spec."""
    out = tmp_path / "generated"
    publish(out / "a100", "a100", "causal_d64")
    publish(out / "cpu", "cpu", "causal_d64")

    def explained(*words: str) -> str:
        result = RUN.invoke(app, ["explain", "causal_d64", *words])
        assert result.exit_code == 0, result.stderr
        return result.stdout

    assert "of spec cpu, for cpu" in explained("--out", str(out))
    for words in (
        ("--out", str(out / "a100")),
        ("--out", str(out), "--spec", str(specs_dir() / "a100.yaml")),
    ):
        text = explained(*words)
        assert "of spec a100, for sm_80" in text and "fagen_causal_d64_forward: 199 registers" in text
    changed = tmp_path / "changed.yaml"
    changed.write_text((specs_dir() / "a100.yaml").read_text().replace("mask: causal", "mask: causal and q < 99"))
    assert "199 registers" not in explained("--out", str(out), "--spec", str(changed))


def test_a_large_map_is_drawn_small() -> None:
    lines = list(tile_map(_plan("causal_d64"), ProblemSize(q_len=12000, kv_len=12000)).lines())
    assert max(map(len, lines[:-2])) <= 70 and len(lines) < 70
    assert lines[-2].startswith("  (a character is ")


def test_costs_by_hand() -> None:
    size = ProblemSize(batch=2, heads=4, kv_heads=2, q_len=100, kv_len=200)
    found = explain(_plan("full_d64"), size)
    pairs = 2 * 4 * 100 * 200
    forward, backward = found.costs
    assert forward.operations == 2 * pairs * 128 == operations(READY["full_d64"], pairs, "forward")
    assert backward.operations == 2 * pairs * 320 == operations(READY["full_d64"], pairs, "backward")
    q, kv, lse = 2 * 4 * 100 * 64 * 4, 2 * 2 * 200 * 64 * 4, 2 * 4 * 100 * 4
    assert forward.moved == q + 2 * kv + q + lse
    assert forward.moved_unfused == forward.moved + pairs * (4 + 4 + 4 + 4)
    assert forward.extra == 2 * 2 * 200 * (64 + 64) * 4
    assert forward.extra_unfused == pairs * 8
    assert backward.extra == 2 * 4 * 100 * (64 + 1 + 1) * 4  # dQ, delta, norm
    assert backward.extra_unfused == pairs * 12
    assert str(costs(_plan("full_d64"), "forward").operations) == "256*pairs"


@pytest.mark.parametrize("mask", [None, "causal", "3 * kv < q", "causal and q - kv < 99 + 9 * h"])
def test_hopper_holds_the_tiles_of_a_mask(mask: str | None) -> None:
    """Where a kernel finds them: of as many words as find_tiles of host/launch.h makes room for, the bytes of each."""
    planned = plan(variant(mask, dtype="bf16", head_dim=64, backward=False), "sm_90a")
    forward: Any = planned.forward
    size = ProblemSize(batch=2, heads=4, kv_heads=2, q_len=1000, kv_len=5000)
    heads = 4 if mask and "h" in mask.split() else 1
    words = 2 * heads * math.ceil(1000 / forward.tile_q) * math.ceil(math.ceil(5000 / forward.tile_kv) / 32)
    [cost] = explain(planned, size).costs
    assert cost.extra == (0 if mask in (None, "causal") else words * 8 * forward.groups)


def test_other_kernels_for_cards_hold_nothing() -> None:
    planned = plan(variant("causal", dtype="bf16", head_dim=64, backward=False), "sm_80")
    assert [cost.extra for cost in explain(planned, ProblemSize()).costs] == [0]


@pytest.mark.parametrize("size", ["Sq0,Skv5", "Sq5,Skv0", "Sq0,Skv0"])
def test_an_empty_problem_has_a_map(size: str) -> None:
    found = explain(_plan("causal_d64"), parse_size(size))
    assert found.map.admitted == 0 and "never run: 0" in found.text()


def test_the_text_names_every_choice_with_its_reason() -> None:
    planned = _plan("window_d64")
    text = explain(planned, ProblemSize()).text()
    for name, why in planned.why.items():
        assert f"  {name}" in text and why in text
    assert "causal and q - kv < W" in text and "that is: kv <= q and q - kv < 256" in text


def test_json_holds_what_the_text_says() -> None:
    found = explain(_plan("documents_d64"), ProblemSize(q_len=500, kv_len=500)).to_json()
    assert found["tiles"]["total"] == sum(map(len, found["tiles"]["map"]))
    assert found["tiles"]["partial"] > found["tiles"]["empty"] == 0
    assert {cost["direction"] for cost in found["costs"]} == {"forward", "backward"}
    assert all(choice["why"] for choice in found["choices"])


@pytest.mark.parametrize(
    ("score", "special", "instructions"),
    [
        (None, 1, 3.5),  # s · scale - reference; the exponential, its sum, half a conversion
        ("s - slope[h] * (q - kv)", 1, 5.5),  # the distance, and a multiply-add each for it and for s
        ("softcap(50)", 1, 11.5),  # the argument, and tanh by a polynomial
        ("s / kv_len + exp(s) * s", 2, 7.5),  # s, a product, an exponential, two multiply-adds
        ("s + 1 / (1 + kv)", 2, 6.5),  # a sum, a reciprocal, two multiply-adds
    ],
)
def test_the_least_time_by_hand(score: str | None, special: int, instructions: float) -> None:
    planned = plan(variant("causal", score, params=PARAMS, dtype="bf16", head_dim=128, backward=False), "sm_90a")
    size = ProblemSize(batch=2, heads=4, kv_heads=4, q_len=1000, kv_len=1000)
    [cost] = explain(planned, size).costs
    pairs, clocks = 2 * 4 * 1000 * 1001 / 2, 132 * 1.98e9
    found = {bound.unit: bound for bound in cost.bounds}
    assert found["matrix products"].seconds == pytest.approx(pairs * 4 * 128 / 4096 / clocks)
    assert found["special functions"].seconds == pytest.approx(pairs * special / 16 / clocks)
    assert (found["special functions"].per_pair, found["instructions"].per_pair) == (special, instructions)
    assert found["instructions"].seconds == pytest.approx(pairs * instructions / 128 / clocks)
    assert cost.bounds[0].seconds == max(bound.seconds for bound in cost.bounds)


def test_the_least_time_is_said_where_rates_are_known() -> None:
    size = ProblemSize(batch=2, heads=16, kv_heads=16, q_len=8192, kv_len=8192)
    planned = plan(variant("causal", dtype="bf16", head_dim=64, backward=False), "sm_90a")
    text = explain(planned, size).text()
    assert "takes at least 257 µs, bound by matrix products" in text
    assert "matrix products   257 µs   = pairs · 256 / 4096 a clock" in text
    assert explain(planned, size).to_json()["costs"][0]["bounds"][0]["unit"] == "matrix products"
    for target in ("sm_80", "cpu"):
        other = plan(variant("causal", dtype="f16", head_dim=64, backward=False), target)
        assert "takes at least" not in explain(other, size).text()
