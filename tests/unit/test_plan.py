"""The planner: every choice explained, within its limits, and carried through JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from golden_plans import card_plans, golden_plans

from fagen.errors import PlanError
from fagen.plan import Plan, plan, plan_from_json
from fagen.plan.cpu.registers import ROWS, register_tile
from fagen.runtime.variant import Expression, Param, Tiles, Variant
from fagen.target import ISAS, TARGETS, native_isa, resolve_isa


def variant(**fields: object) -> Variant:
    return Variant(**{"name": "v", "head_dim": 64, "value_dim": 64, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("planned", golden_plans() + card_plans(), ids=lambda planned: planned.variant.name)
def test_every_choice_has_a_reason(planned: Plan) -> None:
    fields = {field.name for field in dataclasses.fields(planned.forward)}
    if planned.backward is not None:
        fields |= {f"backward.{field.name}" for field in dataclasses.fields(planned.backward)}
    own = {"isa", "product"} if planned.target == "cpu" else set()
    assert fields | {"schedule", "backward"} | own <= set(planned.why)
    assert all(reason.strip() for reason in planned.why.values())


@pytest.mark.parametrize("planned", golden_plans() + card_plans(), ids=lambda planned: planned.variant.name)
def test_json_round_trip(planned: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(planned.to_json()))) == planned


@pytest.mark.parametrize("isa", ISAS.values(), ids=lambda isa: isa.name)
def test_register_tiles_fit(isa: object) -> None:
    for columns in range(1, 1025):
        tile = register_tile(columns, isa)  # type: ignore[arg-type]
        width = tile.vectors * tile.panels * isa.lanes  # type: ignore[attr-defined]
        assert columns <= width < columns + tile.vectors * isa.lanes  # type: ignore[attr-defined]
        assert ROWS * tile.vectors + tile.vectors + 1 <= isa.registers  # type: ignore[attr-defined]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_sizes_for_any_head_dim(isa: str, dtype: str) -> None:
    lanes = ISAS[isa].lanes
    for size in (1, 7, 64, 65, 128, 256, 576, 1024):
        forward = plan(variant(head_dim=size, value_dim=size, dtype=dtype, backward=False), isa=isa).forward
        assert forward.tile_kv % (forward.key_vectors * lanes) == 0
        assert forward.value_panels * forward.value_vectors * lanes >= size
        assert 1 <= forward.rows <= forward.tile_q
        # A tile of keys, and the rows of an item, stay in half of a second-level cache of 1 MiB.
        assert forward.tile_kv <= 64 or forward.tile_kv * 2 * size * 4 <= 512 << 10
        assert forward.tile_q <= 24 or forward.tile_q * 2 * size * 4 <= 512 << 10


def test_bf16_is_multiplied_as_bf16_only_where_the_cpu_does() -> None:
    for isa in ISAS.values():
        for dtype in ("f32", "bf16", "f16"):
            why = plan(variant(dtype=dtype, backward=False), isa=isa.name).why["product"]
            assert ("pairs of bf16" in why) == (isa.bf16_dots and dtype == "bf16")


BIAS, STEP = Param("bias", "f32", ("H", "n")), Param("step", "i32", ("n",))


@pytest.mark.parametrize(
    ("score", "bands", "keys"),
    [
        ("s + bias[h, q - kv]", 1, 128),
        ("s + bias[h, q - kv] * step[kv - q + 8]", 2, 128),
        ("s + bias[h, q - kv] * step[kv - q + 8] - step[q - kv]", 0, 96),  # too many
        ("s + bias[h, q - kv] * step[kv]", 1, 96),  # pairs load another
        ("s + bias[h, kv]", 0, 96),
        ("s + bias[h, 0]", 0, 128),
    ],
)
def test_what_scores_read_along_diagonals_takes_shared_memory_not_registers(score: str, bands: int, keys: int) -> None:
    wide = variant(head_dim=128, value_dim=128, dtype="bf16", backward=False, params=(BIAS, STEP))
    forward = plan(dataclasses.replace(wide, score=Expression(score, score)), "sm_90a").forward
    assert (forward.bands, forward.tile_kv) == (bands, keys)


def test_where_there_is_no_room_pairs_load_what_they_read() -> None:
    wide = variant(value_dim=256, dtype="bf16", backward=False, params=(BIAS,))
    score = Expression("s + bias[h, q - kv]", "s + bias[h, q - kv]")
    for keys, bands in ((96, 1), (112, 0)):
        tiles = Tiles(q=64, kv=keys, stages=3)
        planned = plan(dataclasses.replace(wide, score=score, tiles=tiles), "sm_90a")
        assert planned.forward.bands == bands
        assert ("no room" in planned.why["bands"]) == (bands == 0)


def test_tiles_of_the_spec_are_kept() -> None:
    planned = plan(variant(tiles=Tiles(q=40, kv=96)))
    assert (planned.forward.tile_q, planned.forward.tile_kv) == (40, 96)
    assert planned.why["tile_q"] == "the spec's tiles.q"


@pytest.mark.parametrize("name", ["sm_100a", "sm_103a"])
def test_targets_without_a_schedule_say_so(name: str) -> None:
    with pytest.raises(PlanError, match=f"the schedule `{TARGETS[name].schedule}` for {name} is not built yet"):
        plan(variant(dtype="f16"), name)


def test_all_problems_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        plan(variant(head_dim=0, value_dim=5000, dtype="f64", tiles=Tiles(q=0, kv=23, stages=2)))
    text = str(caught.value)
    for part in ("head_dim 0", "value_dim 5000", "no f64", "tiles.q 0", "tiles.kv 23", "tiles.stages"):
        assert part in text
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(("q", "kv", "head_dim"), [(192, 256, 64), (192, 16, 256)])
def test_products_that_no_thread_can_hold_are_refused(q: int, kv: int, head_dim: int) -> None:
    what = f"a product of 256 columns takes 158 registers .* blocks of {q} rows leave it 128"
    with pytest.raises(PlanError, match=what):
        plan(
            variant(dtype="f16", head_dim=head_dim, value_dim=head_dim, backward=False, tiles=Tiles(q=q, kv=kv)),
            "sm_90a",
        )


def test_turing_has_no_bf16() -> None:
    with pytest.raises(PlanError, match="sm_75 has no bf16 kernels"):
        plan(variant(dtype="bf16"), "sm_75")


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(PlanError, match="unknown target `sm_42`"):
        plan(variant(), "sm_42")


def test_the_variant_chooses_its_isa_before_the_caller_does() -> None:
    assert plan(variant(isa="avx2"), isa="portable").isa == "avx2"
    assert plan(variant(), isa="portable").isa == "portable"
    assert plan(variant()).isa == native_isa() == resolve_isa("native")


@pytest.mark.parametrize("isa", [name for name in ISAS if name != "portable"])
def test_instruction_sets_of_another_machine_are_refused(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    native_isa.cache_clear()
    try:
        for asked in ({"isa": isa}, {}):
            with pytest.raises(PlanError, match=f"v: isa {isa} is for x86-64, and this machine is aarch64"):
                plan(variant(**asked), isa=isa)
        assert plan(variant()).isa == plan(variant(isa="portable")).isa == "portable"
    finally:
        native_isa.cache_clear()


@pytest.mark.parametrize("target", [target.name for target in TARGETS.values() if target.schedule == "mma"])
def test_keys_that_make_room_for_tiles_of_the_spec_are_whole_steps_of_a_product(target: str) -> None:
    for value_dim in (40, 64, 192):
        for tiles in (Tiles(), Tiles(q=192), Tiles(q=192, stages=2), Tiles(q=256)):
            asked = variant(head_dim=192, value_dim=value_dim, dtype="f16", backward=False, tiles=tiles)
            with contextlib.suppress(PlanError):  # of tiles that do not fit, however few keys they have
                assert plan(asked, target).forward.tile_kv % 16 == 0


def test_the_target_table() -> None:
    assert {target.schedule for target in TARGETS.values() if target.built} == {"cpu", "mma", "wgmma"}
    for target in TARGETS.values():
        assert target.sources and 64 in target.head_dim and 128 in target.value_dim
        assert (target.device is None) == (target.name == "cpu")
        if target.device is not None:
            # The driver keeps a KiB of shared memory from each block from sm_80 on.
            kept = 0 if target.name == "sm_75" else 1024
            assert target.device.shared_per_block == target.device.shared_per_sm - kept
            assert (target.device.tensor_memory > 0) == (target.schedule == "tcgen05")


def test_the_isa_table() -> None:
    assert list(ISAS) == ["avx512_bf16", "avx512", "avx2", "portable"]
    for better, worse in zip(ISAS.values(), list(ISAS.values())[1:], strict=False):
        assert set(better.features) > set(worse.features) and better.lanes >= worse.lanes
