"""The mma schedule, put together."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from ...errors import PlanError
from ...expr import CUDA_SCALAR, emit
from ...runtime.variant import Variant
from ...target import Target
from ..model import Plan
from ..schedule import Schedule
from .backward import Backward, choose_backward
from .forward import Forward, choose_forward
from .names import direction_names, shared_names
from .refuse import backward_too_large, problems, too_large
from .search import BACKWARD_SEARCH, SEARCH

# What nvcc is given for every kernel unit, beside the architecture. No -use_fast_math: NaN, Inf and denormals count.
KERNEL_FLAGS = ("-std=c++17", "-lineinfo", "--expt-relaxed-constexpr", "-Werror=all-warnings")


def make(variant: Variant, target: Target, isa: str, spec: str) -> Plan:
    """The plan of a variant; ``isa`` is of CPUs. Raises PlanError."""
    del isa
    found = list(problems(variant, target))
    if found:
        raise PlanError(found)
    code = emit(variant, CUDA_SCALAR)
    forward, why = choose_forward(variant, target)
    if found := list(too_large(variant, target, forward.shared_bytes)):
        raise PlanError(found)
    backward = None
    if variant.backward:
        backward, reasons = choose_backward(variant, target, code)
        if found := list(backward_too_large(variant, target, backward)):
            raise PlanError(found)
        why |= {f"backward.{name}": reason for name, reason in reasons.items()}
    why["schedule"] = f"{target.instruction}, which {target.title} has"
    why["backward"] = "the spec's" if variant.backward else "the spec leaves it out"
    return Plan(
        variant=variant,
        spec=spec,
        target=target.name,
        schedule=target.schedule,
        isa=None,
        flags=KERNEL_FLAGS,
        code=code,
        forward=forward,
        backward=backward,
        why=MappingProxyType(dict(sorted(why.items()))),
    )


def no_bytes(plan: Plan) -> int:
    """Nothing is held beyond inputs and outputs."""
    del plan
    return 0


def row_bytes(plan: Plan) -> int:
    """What backward of cards holds for a query row: its notes and sums of dQ, as BackwardWork of host/launch.h has
    them."""
    backward: Any = plan.backward
    held: int = backward.note_bytes + backward.sum_bytes
    return held


MMA = Schedule(
    make=make,
    forward=Forward,
    backward=Backward,
    shared_names=shared_names,
    direction_names=direction_names,
    key_bytes=no_bytes,
    row_bytes=row_bytes,
    suffix=".cu",
    search=SEARCH,
    backward_search=BACKWARD_SEARCH,
)
