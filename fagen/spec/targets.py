"""One spelling for each target: "90a", "9.0a", "sm90a" and "compute_90a" all mean sm_90a."""

from __future__ import annotations

import re

from fagen.spec.document import Place, shorten
from fagen.spec.schema import listed
from fagen.spec.validate import Found
from fagen.target import TARGETS

_ARCHITECTURE = re.compile(r"(?:(?:sm|compute)_?)?([0-9]{1,3})(?:\.([0-9]))?([af]?)", re.IGNORECASE)


def known_targets() -> tuple[str, ...]:
    """Every target a spec may name, built or not."""
    return (*TARGETS, "native")


def normal_target(text: str) -> str:
    """The one spelling of a target, known or not."""
    match = _ARCHITECTURE.fullmatch(text.strip())
    if match is None:
        return text.strip().lower()
    major, minor, suffix = match.groups()
    return f"sm_{major}{minor or ''}{suffix.lower()}"


def read_target(text: str, place: Place) -> tuple[str | None, Found | None]:
    """The target's normal name, or what is wrong with it."""
    name = normal_target(text)
    if name in known_targets():
        return name, None
    hint = f"write `{name}a`" if f"{name}a" in TARGETS else None
    return None, Found(
        f"unknown target `{shorten(text)}`: expected {listed(known_targets())}", place, hint, name, known_targets()
    )
