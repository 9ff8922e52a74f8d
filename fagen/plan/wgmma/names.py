"""The names that the wgmma templates see. A template prints these and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from ..mma.names import expression_names, shared_names
from ..model import Plan
from .forward import Forward

__all__ = ["direction_names", "shared_names"]


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of the forward kernel print besides."""
    assert direction == "forward" and isinstance(plan.forward, Forward)
    forward = plan.forward
    names = expression_names(plan)
    contains = plan.variant.mask is not None and plan.variant.nonfinite == "contain"
    return {
        **names,
        "tile_kv": forward.tile_kv,
        "groups": forward.groups,
        "stages": forward.stages,
        "registers": forward.registers,
        "feeder_registers": forward.feeder_registers,
        "shared_bytes": forward.shared_bytes,
        "turns": forward.turns,
        # As the instruction calls the type of its operands.
        "product": plan.variant.dtype,
        "screeners": " + kScreeners" if contains else "",
    }
