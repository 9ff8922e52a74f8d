"""Which keys of the schema are built, and what is refused by name until it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Key -> whether a value asks for what is not built yet. A value that only states today's behaviour is accepted.
_NOT_BUILT: dict[str, Callable[[Any], bool]] = {
    "cache": lambda value: True,
    "dtype": lambda value: isinstance(value, dict),
    "group": lambda value: True,
    "lengths": lambda value: value != "dense",
    "multiple_of": lambda value: True,
    "nonfinite": lambda value: value != "contain",
    "normalize": lambda value: value is not True,
    "schedule": lambda value: True,
    "splits": lambda value: True,
    "tile_map": lambda value: True,
    "value": lambda value: True,
    "weight": lambda value: True,
}

# What the reference page says of keys that are built in part.
PARTLY_BUILT = {
    "dtype": "one dtype for q, k, v and o is built; a mapping `{q, k, v, o}` is not built yet",
    "lengths": "`dense` is built; `varlen` is not built yet",
    "nonfinite": "`contain` is built; `fast` is not built yet",
    "normalize": "`true` is built; `false` is not built yet",
}


def is_built(key: str, value: Any) -> bool:
    """Whether fagen can build a variant whose ``key`` has this (validated) value."""
    asks_for_more = _NOT_BUILT.get(key)
    return value is None or asks_for_more is None or not asks_for_more(value)


def unbuilt_keys() -> tuple[str, ...]:
    """The keys that some value of cannot be built yet, sorted."""
    return tuple(sorted(_NOT_BUILT))


def status(key: str) -> str:
    """ "built", "not built yet", or which part is."""
    if key not in _NOT_BUILT:
        return "built"
    return PARTLY_BUILT.get(key, "not built yet")


def not_built_message(key: str, shown: str) -> str:
    """What a spec that uses such a key is told; ``shown`` is the value as found."""
    if key in PARTLY_BUILT:
        return f"`{key}`: {shown} is not built yet"
    return f"`{key}` is not built yet"
