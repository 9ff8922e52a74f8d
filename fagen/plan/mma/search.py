"""What tuning tries of the mma schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...runtime.variant import Tiles
from ...target import Target
from ..model import Plan
from ..schedule import Search
from .backward import KEYS, ROWS, STAGES, Backward, most_keys, registers_of, too_many
from .forward import Forward, shared_bytes

_BESIDE = 48  # registers of a thread, beside its sums and scores, that ptxas asked for at least
_MOST_KEYS, _STEP = 256, 16


def _tiles() -> Iterator[Tiles]:
    for q, kv, stages in product((64, 128, 192, 256), range(_STEP, _MOST_KEYS + 1, _STEP), (1, 2)):
        yield Tiles(q, kv, stages)


def _tiles_of(plan: Plan) -> Tiles:
    assert isinstance(plan.forward, Forward)
    return Tiles(plan.forward.tile_q, plan.forward.tile_kv, plan.forward.stages)


def _waste(plan: Plan, target: Target) -> str:
    forward, variant, device = plan.forward, plan.variant, target.device
    assert isinstance(forward, Forward) and device is not None

    def needed(keys: int) -> int:
        # Sums and scores of a warp's rows, by its 32 threads.
        return forward.tile_q // forward.warps * (variant.value_dim + keys) // 32 + _BESIDE

    def fits(keys: int) -> bool:
        held = shared_bytes(variant, forward.tile_q, keys, forward.stages) <= device.shared_per_block
        return held and needed(keys) <= device.registers_per_thread

    if needed(forward.tile_kv) > device.registers_per_thread:
        return (
            f"a thread needs {needed(forward.tile_kv)} registers and has {device.registers_per_thread}: it would spill"
        )
    most = next((keys for keys in range(_MOST_KEYS, 0, -_STEP) if fits(keys)), 0)
    if 4 * forward.tile_kv <= most:
        return f"{forward.tile_kv} keys a tile are no more than a quarter of the {most} that fit"
    return ""


def _backward_tiles() -> Iterator[Tiles]:
    for q, kv, stages in product(ROWS, KEYS, STAGES):
        yield Tiles(q, kv, stages)


def _backward_tiles_of(plan: Plan) -> Tiles:
    assert isinstance(plan.backward, Backward)
    return Tiles(plan.backward.tile_q, plan.backward.tile_kv, plan.backward.stages)


def _backward_waste(plan: Plan, target: Target) -> str:
    backward = plan.backward
    assert isinstance(backward, Backward) and target.device is not None
    if why := too_many(*registers_of(backward), plan.variant, plan.code):
        return why
    # Queries are read once for all of a block's keys.
    most = most_keys(plan.variant, target.device, plan.code)
    if 4 * backward.tile_kv <= most:
        return f"{backward.tile_kv} keys a block are no more than a quarter of the {most} that fit"
    return ""


BACKWARD_SEARCH = Search(_backward_tiles, _backward_tiles_of, _backward_waste, "backward_tiles")
SEARCH = Search(_tiles, _tiles_of, _waste)
