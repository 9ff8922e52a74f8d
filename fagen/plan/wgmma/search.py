"""What tuning tries of the wgmma schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...runtime.variant import Tiles
from ...target import Target
from ..model import Plan
from ..schedule import Search
from .backward import ROWS, Backward
from .backward import registers_needed as backward_registers_needed
from .forward import Forward, fitting_keys, reads_of, registers_needed


def _tiles() -> Iterator[Tiles]:
    for q, kv, stages in product((64, 128, 192), range(16, 257, 16), (2, 3, 4)):
        for turns in ("none",) if q == 64 else ("scores", "sums"):
            yield Tiles(q, kv, stages, turns)


def _tiles_of(plan: Plan) -> Tiles:
    assert isinstance(plan.forward, Forward)
    return Tiles(plan.forward.tile_q, plan.forward.tile_kv, plan.forward.stages, plan.forward.turns)


def _waste(plan: Plan, target: Target) -> str:
    forward, variant = plan.forward, plan.variant
    assert isinstance(forward, Forward) and target.device is not None
    reads = reads_of(variant, plan.code.banded_score, forward.bands)
    needed = registers_needed(variant, reads, forward.groups, forward.tile_kv)
    if needed > forward.registers:
        return f"a thread that multiplies needs {needed} registers and has {forward.registers}: it would spill"
    # Of few keys each tile has its waits all the same, and products are too short to hide them.
    most = next(fitting_keys(variant, reads, target.device, forward.groups, forward.stages), 0)
    if 2 * forward.tile_kv <= most:
        return f"{forward.tile_kv} keys a tile are no more than half of the {most} that fit"
    return ""


def _backward_tiles() -> Iterator[Tiles]:
    for q, stages in product(ROWS, (1, 2)):
        yield Tiles(q, None, stages)


def _backward_tiles_of(plan: Plan) -> Tiles:
    assert isinstance(plan.backward, Backward)
    return Tiles(plan.backward.tile_q, None, plan.backward.query_stages)


def _backward_waste(plan: Plan, target: Target) -> str:
    del target
    backward = plan.backward
    assert isinstance(backward, Backward)
    needed = backward_registers_needed(plan.variant, backward)
    if needed > backward.registers:
        return f"a thread that multiplies needs {needed} registers and has {backward.registers}: it would spill"
    return ""


BACKWARD_SEARCH = Search(_backward_tiles, _backward_tiles_of, _backward_waste, "backward_tiles")
SEARCH = Search(_tiles, _tiles_of, _waste)
