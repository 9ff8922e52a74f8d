"""One spelling for each target: "90a", "9.0a", "sm90a" and "compute_90a" all mean sm_90a."""

from __future__ import annotations

import re

from ..target import ISAS, TARGETS, Target
from .document import Place, shorten
from .schema import listed
from .validate import Found

OLDEST = 75  # of the architectures that CUDA 13.0 knows

_CPU_WORDS = ("x86", "x8664", "amd64", "arm64", "aarch64", "intel", "amd")
_GPU_WORDS = ("gpu", "cuda", "")  # "nvidia" is folded away
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
        return None, Found(message, place, _hint(name), name, known_targets())
    number = re.sub("[af]$", "", name)
    near = [target for target in (number, number + "a") if target in TARGETS]
    hint = f"write `{near[0]}`" if near else None
    if int(number.removeprefix("sm_")) < OLDEST:
        hint = f"CUDA 13 compiles for sm_{OLDEST} and newer"
    return None, Found(message, place, hint)


def _hint(name: str) -> str | None:
    """What somebody may have meant who names a maker, a product or an instruction set."""
    word = _folded(name)
    if word in ISAS:
        return f"write `target: cpu` and `isa: {word}`"
    if word in _CPU_WORDS:
        return "write `cpu`"
    if word in _GPU_WORDS:
        return "write the GPU's architecture, as `sm_90a` for an H100, or `native` for the GPU of this machine"
    meant = [target for target in TARGETS.values() if any(_is_of(word, product) for product in _products(target))]
    if not meant:
        return None
    return "write " + " or ".join(
        f"`{target.name}`" + (f" ({target.title})" if len(meant) > 1 else "") for target in meant
    )


def _products(target: Target) -> list[str]:
    """What its title calls it: `Ampere (A10, RTX 30)` is ampere, a10 and rtx30."""
    return [_folded(part) for part in re.split(r"[(),]", target.title) if part.strip()] if target.device else []


def _is_of(word: str, product: str) -> bool:
    if product.startswith("rtx"):  # a series: RTX 40 is 4060 to 4090
        return re.fullmatch(rf"(geforce)?(rtx)?{product[3:]}(\d0(ti|super)?)?", word) is not None
    return word in (product, product.removeprefix("jetson"), product.removeprefix("dgx"))


def _folded(text: str) -> str:
    return re.sub("[^a-z0-9_]|(?<!avx512)_", "", text.lower().removeprefix("nvidia"))
