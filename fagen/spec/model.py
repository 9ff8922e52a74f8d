"""A spec as the rest of the compiler sees it: checked, with its variants still in families."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..runtime.language import Define
from ..runtime.variant import Param
from .document import Document, Node, Place


@dataclass(frozen=True, eq=False)
class Value:
    """The value of a key: as the schema checked it, the node it was read from, and where its key stands."""

    value: Any
    node: Node
    key_place: Place


@dataclass(frozen=True, eq=False)
class Entry:
    """One item of ``variants:``, a variant or a family of them.

    ``values`` holds its keys and those of ``defaults`` it doesn't set; ``matrix`` the values of each axis;
    ``later`` its keys that are not built yet; ``broken`` the keys left out because they are wrong.
    """

    template: str
    place: Place
    values: Mapping[str, Value]
    matrix: Mapping[str, tuple[Value, ...]]
    later: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Spec:
    """What a spec file says. ``path`` is the file as the user named it, ``text`` what it held.

    ``targets`` are normal names ("cpu", "native", "sm_90a"). ``skipped`` lists, with their names, the variants that
    wait for keys that are not built yet.
    """

    name: str
    path: str
    text: str
    targets: tuple[str, ...]
    isa: str
    params: Mapping[str, Param]
    consts: Mapping[str, int | float]
    defines: Mapping[str, Define]
    defaults: Mapping[str, Any]
    entries: tuple[Entry, ...]
    document: Document = field(repr=False)
    skipped: tuple[tuple[str, tuple[str, ...]], ...] = ()
    target_places: Mapping[str, Place] = field(default_factory=dict)
    broken: frozenset[str] = frozenset()  # names declared wrongly; empty in every Spec that load() returns
