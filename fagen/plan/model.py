"""A Plan: everything that a template may print, decided and explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

from ..expr import KernelCode
from ..runtime.variant import Variant


class Choices(Protocol):
    """What a schedule chose for one direction: a frozen dataclass of its own, with at least these.

    ``tile_q`` and ``tile_kv`` are query rows and keys a tile, ``optimize`` the flag that its source is compiled with.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def tile_q(self) -> int: ...
    @property
    def tile_kv(self) -> int: ...
    @property
    def optimize(self) -> str: ...


@dataclass(frozen=True)
class Plan:
    """How one variant is built for one target.

    The first fields say what every schedule needs: the variant, the name of the ``spec`` it is from, the ``target``
    and its ``schedule`` (a folder of templates), the ``isa`` (None on targets that have no choice of one), the
    ``flags`` that its sources are compiled with, and the ``code`` of its expressions. ``forward`` and ``backward``
    hold what the schedule itself chose; ``backward`` is None where the variant has none. ``why`` gives a reason for
    every choice: its keys are field names, those of backward with "backward." in front.
    """

    variant: Variant
    spec: str
    target: str
    schedule: str
    isa: str | None
    flags: tuple[str, ...]
    code: KernelCode
    forward: Choices
    backward: Choices | None
    why: Mapping[str, str]

    @property
    def directions(self) -> tuple[str, ...]:
        """What is rendered: one source each."""
        return ("forward",) if self.backward is None else ("forward", "backward")

    def flags_of(self, direction: str) -> tuple[str, ...]:
        """What the source of one direction is compiled with."""
        chosen = self.forward if direction == "forward" else self.backward
        assert chosen is not None, f"{self.variant.name} has no {direction}"
        return (*self.flags, chosen.optimize)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars; :func:`plan_from_json` is its inverse."""
        return asdict(replace(self, why=dict(self.why)))  # asdict copies no mapping proxy
