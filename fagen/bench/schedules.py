"""Several modules' kernels of one function side by side, from the unfused formula on: the algorithm's generations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..costs import ProblemSize
from ..runtime.module import Module
from ..runtime.variant import Variant
from . import peers
from .calls import Call, peer_call, variant_call
from .grids import Function
from .inputs import Inputs

UNFUSED = "unfused"


class Schedules:
    """The modules that stand beside one, oldest first, by their schedules' names: ``names`` has all of them, the
    unfused formula first and the module itself last. Two of one schedule are told apart by their modules' names."""

    def __init__(self, module: Module, others: Sequence[Module]):
        self.modules = [*others, module]
        schedules = [_schedule(each) for each in self.modules]
        alike = Counter(schedules)
        self.labels = [
            name if alike[name] == 1 else f"{name} ({each.name})"
            for name, each in zip(schedules, self.modules, strict=True)
        ]
        self.names = (UNFUSED, *self.labels)

    def calls(self, variant: Variant, size: ProblemSize, inputs: Inputs, device: str) -> dict[str, Call]:
        """Forward calls by name, without those that a module lacks. ``variant`` is of the last module."""
        calls = {}
        unfused = peers.unfused(variant, size, inputs.params, device)
        if unfused is not None:
            calls[UNFUSED] = peer_call(unfused, variant, inputs, gradients=False)
        for label, module in zip(self.labels[:-1], self.modules, strict=False):
            if (same := _same(variant, module)) is not None:
                calls[label] = variant_call(module, same, inputs, gradients=False)
        return {**calls, self.labels[-1]: variant_call(self.modules[-1], variant, inputs, gradients=False)}


def _schedule(module: Module) -> str:
    schedule: str = module.manifest["variants"][0]["plan"]["schedule"]
    return schedule


def _same(variant: Variant, module: Module) -> Variant | None:
    """The variant of ``module`` that computes the same from the same tensors."""
    function = Function.of(variant)

    def like(other: Variant) -> tuple[object, ...]:
        return other.layout, other.align, {param.name for param in other.params}

    if variant.sink or variant.dropout:
        return None
    found = (other for other in module.variants() if function.matches(other) and like(other) == like(variant))
    return next(found, None)
