"""What a schedule is to the planner: the one place where a way of computing attention is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ..runtime.variant import Tiles, Variant
from ..target import Target
from .model import Choices, Plan


@dataclass(frozen=True)
class Search:
    """What tuning may try of a schedule.

    ``tiles`` are all combinations of its choices, whether a variant can have them or not; ``tiles_of`` is the one that
    a plan took, and ``field`` what a variant calls such. ``waste`` says why a plan that could be compiled is not worth
    it, by what it takes of registers and memory; "" if it is.
    """

    tiles: Callable[[], Iterable[Tiles]]
    tiles_of: Callable[[Plan], Tiles]
    waste: Callable[[Plan, Target], str]
    field: str = "tiles"


@dataclass(frozen=True)
class StoredTiles:
    """What forward stores of a mask's tiles before it runs: ``word_bytes`` for each 32 tiles of ``keys`` keys beside a
    block of ``rows`` query rows, of each head or (not ``by_head``) once for all."""

    rows: int
    keys: int
    word_bytes: int
    by_head: bool


@dataclass(frozen=True)
class Schedule:
    """A folder of templates and what decides for them.

    ``make(variant, target, isa, spec)`` is the plan, or a PlanError with everything the schedule cannot do.
    ``forward`` and ``backward`` are the types of its choices, which a manifest's JSON is read back into.
    ``shared_names`` and ``direction_names`` are what its templates may print. ``key_bytes`` is the memory that forward
    holds for a key of a key head, ``row_bytes`` that backward holds for a query row, ``stored_tiles`` what forward
    stores of a mask, if it does. ``suffix`` ends the names of its sources. ``search`` is for tuning, as is
    ``backward_search`` where backward kernels have tiles of their own: None where those of forward are of both.
    """

    make: Callable[[Variant, Target, str, str], Plan]
    forward: type[Choices]
    backward: type[Choices]
    shared_names: Callable[[Plan], Mapping[str, object]]
    direction_names: Callable[[Plan, str], Mapping[str, object]]
    key_bytes: Callable[[Plan], int]
    row_bytes: Callable[[Plan], int]
    suffix: str
    search: Search
    stored_tiles: Callable[[Plan], StoredTiles | None] = lambda plan: None
    backward_search: Search | None = None
