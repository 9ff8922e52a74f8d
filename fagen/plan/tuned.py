"""What tuning found for a variant, as the planner takes it."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.variant import Tiles, Variant

# What a tuning file is measured for: raise it where the same tiles become another kernel, so that none of its figures
# says anything any more.
PLAN_VERSION = 1


@dataclass(frozen=True)
class Tuned:
    """``tiles`` to take, whose ``measured`` is the reason; None where what was found is of no use, and ``problem`` says
    why."""

    tiles: Tiles | None
    problem: str = ""


def shape_class(variant: Variant) -> str:
    """What two variants share whose kernels are equally fast, whatever they are called and wherever they stand."""
    parts = [variant.dtype, f"{variant.head_dim}/{variant.value_dim}", variant.layout, variant.align]
    parts += [word for word in ("backward", "deterministic", "dropout", "sink") if getattr(variant, word)]
    parts.append(variant.nonfinite)
    if variant.scale is not None:
        parts.append(f"scale {variant.scale!r}")
    for key, expression in (("mask", variant.mask), ("score", variant.score)):
        if expression is not None:
            parts.append(f"{key} {expression.resolved}")
    for param in variant.params:
        parts.append(f"{param.name} {param.dtype}[{' '.join(map(str, param.shape))}]" + " grad" * param.grad)
    return ", ".join(parts)


def tiles_in_words(tiles: Tiles) -> str:
    """As a spec has them: `{q: 128, kv: 64, stages: 2}`."""
    given = {key: getattr(tiles, key) for key in ("q", "kv", "stages", "turns")}
    return "{" + ", ".join(f"{key}: {value}" for key, value in given.items() if value is not None) + "}"
