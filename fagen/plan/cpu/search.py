"""What tuning tries of the cpu schedule."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ...runtime.variant import Tiles
from ...target import Target
from ..model import Plan
from ..schedule import Search
from .registers import ROWS

_CACHE_BYTES = 1 << 20  # of the second level, of most CPUs


def _tiles() -> Iterator[Tiles]:
    for rows, kv in product((2, 4, 8, 16), (64, 128, 256, 512)):
        yield Tiles(rows * ROWS, kv)


def _tiles_of(plan: Plan) -> Tiles:
    return Tiles(plan.forward.tile_q, plan.forward.tile_kv)


def _waste(plan: Plan, target: Target) -> str:
    del target
    variant, forward = plan.variant, plan.forward
    held = (forward.tile_q + forward.tile_kv) * (variant.head_dim + variant.value_dim) * 4
    if held > _CACHE_BYTES:
        return f"its tiles are {held >> 10} KiB, and a second-level cache has {_CACHE_BYTES >> 10}"
    return ""


SEARCH = Search(_tiles, _tiles_of, _waste)
