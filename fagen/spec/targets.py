"""One spelling for each target: "90a", "9.0a", "sm90a" and "compute_90a" all mean sm_90a."""

from __future__ import annotations

import re

from fagen.spec.document import Place, shorten
from fagen.spec.schema import listed
from fagen.spec.validate import Found
from fagen.target import TARGETS

OLDEST = 75  # of the architectures that CUDA 13.0 knows

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
    message = f"unknown target `{shorten(text)}`: expected {listed(known_targets())}"
    match = _ARCHITECTURE.fullmatch(text.strip())
    if match is None:
        return None, Found(message, place, None, name, known_targets())
    number = re.sub("[af]$", "", name)
    near = [target for target in (number, number + "a") if target in TARGETS]
    hint = f"write `{near[0]}`" if near else None
    if int(number.removeprefix("sm_")) < OLDEST:
        hint = f"CUDA 13 compiles for sm_{OLDEST} and newer"
    return None, Found(message, place, hint)
