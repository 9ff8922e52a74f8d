"""What tuning tries of the mma schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...runtime.variant import Tiles
from ...target import Target
from ..model import Plan
from ..schedule import Search
from .forward import Forward

_BESIDE = 48  # registers of a thread, beside its sums and scores, that ptxas asked for at least
_MOST_KEYS, _STEP = 256, 16


def _tiles() -> Iterator[Tiles]:
    for q, kv, stages in product((64, 128, 192, 256), range(_STEP, _MOST_KEYS + 1, _STEP), (1, 2)):
        yield Tiles(q, kv, stages)


def _tiles_of(plan: Plan) -> Tiles:
    assert isinstance(plan.forward, Forward)
    return Tiles(plan.forward.tile_q, plan.forward.tile_kv, plan.forward.stages)


def _waste(plan: Plan, target: Target) -> str:
    forward, dim = plan.forward, plan.variant.value_dim
    assert isinstance(forward, Forward) and target.device is not None
    rows = forward.tile_q // forward.warps
    has = target.device.registers_per_thread
    needed = rows * (dim + forward.tile_kv) // 32 + _BESIDE  # a warp of 32 threads holds both for its rows
    if needed > has:
        return f"a thread needs {needed} registers and has {has}: it would spill"
    most = min((has - _BESIDE) * 32 // rows - dim, _MOST_KEYS)
    if 4 * forward.tile_kv <= most:
        return f"{forward.tile_kv} keys a tile are no more than a quarter of the {most} that registers hold"
    return ""


SEARCH = Search(_tiles, _tiles_of, _waste)
