"""The plans that tuning may choose among for one variant, and those that it need not try."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ..errors import PlanError
from ..runtime.variant import Tiles, Variant
from ..target import TARGETS
from .make import plan
from .schedules import schedule


@dataclass(frozen=True)
class Pruned:
    """Tiles that are not tried, and ``why``."""

    tiles: Tiles
    why: str


@dataclass(frozen=True)
class Candidates:
    """``tiles`` to try, from the planner's own (the first) to those that are least like it; and those ``pruned``.

    The first are Tiles() where no tiles say what the planner chose.
    """

    tiles: tuple[Tiles, ...]
    pruned: tuple[Pruned, ...]


def candidates(variant: Variant, target: str, isa: str = "native", direction: str = "forward") -> Candidates:
    """What there is to try for one direction of ``variant``, whose own tiles for it are left aside.

    Raises PlanError if it cannot be built, ValueError for a direction that has no tiles of its own.
    """
    of = schedule(TARGETS[target].schedule)
    search = of.search if direction == "forward" else of.backward_search
    if search is None:
        raise ValueError(f"{target} has no tiles of its own for {direction}")
    with_tiles: dict[str, Any] = {search.field: Tiles()}
    free = replace(variant, **with_tiles)
    usual = plan(free, target, isa)
    own = search.tiles_of(usual)
    found: list[Tiles] = []
    pruned: list[Pruned] = []
    same = False  # whether tiles of the search, given by name, are the planner's own plan
    for tiles in search.tiles():
        try:
            with_tiles[search.field] = tiles
            made = plan(replace(free, **with_tiles), target, isa)
        except PlanError as error:
            reasons = (problem.message.removeprefix(f"{variant.name}: ") for problem in error.problems)
            pruned.append(Pruned(tiles, "; ".join(reasons)))
            continue
        if (made.forward, made.backward) == (usual.forward, usual.backward):
            same = True
        elif why := search.waste(made, TARGETS[target]):
            pruned.append(Pruned(tiles, why))
        else:
            found.append(tiles)
    first = own if same else Tiles()
    return Candidates((first, *sorted(found, key=lambda tiles: _unlike(tiles, own))), tuple(pruned))


def _unlike(tiles: Tiles, own: Tiles) -> float:
    """How far tiles are from the planner's own: in doublings, turns counting for half of one."""
    pairs = ((tiles.q, own.q), (tiles.kv, own.kv), (tiles.stages, own.stages))
    steps = sum(abs(math.log2(size / usual)) for size, usual in pairs if size is not None and usual is not None)
    return steps + 0.5 * (tiles.turns != own.turns)
