"""What a schedule is to the planner: the one place where a way of computing attention is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..runtime.variant import Variant
from ..target import Target
from .model import Choices, Plan


@dataclass(frozen=True)
class StoredTiles:
    """What forward stores of a mask's tiles before it runs: ``counter_bytes``, and ``word_bytes`` for each 32 tiles of
    ``keys`` keys beside a block of ``rows`` query rows, of each head or (not ``by_head``) once for all."""

    rows: int
    keys: int
    word_bytes: int
    counter_bytes: int
    by_head: bool


@dataclass(frozen=True)
class Schedule:
    """A folder of templates and what decides for them.

    ``make(variant, target, isa, spec)`` is the plan, or a PlanError with everything the schedule cannot do.
    ``forward`` and ``backward`` are the types of its choices, which a manifest's JSON is read back into.
    ``shared_names`` and ``direction_names`` are what its templates may print. ``key_bytes`` is the memory that forward
    holds for a key of a key head, ``row_bytes`` that backward holds for a query row, ``stored_tiles`` what forward
    stores of a mask, if it does. ``suffix`` ends the names of its sources.
    """

    make: Callable[[Variant, Target, str, str], Plan]
    forward: type[Choices]
    backward: type[Choices]
    shared_names: Callable[[Plan], Mapping[str, object]]
    direction_names: Callable[[Plan, str], Mapping[str, object]]
    key_bytes: Callable[[Plan], int]
    row_bytes: Callable[[Plan], int]
    suffix: str
    stored_tiles: Callable[[Plan], StoredTiles | None] = lambda plan: None
