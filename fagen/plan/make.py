"""The planner's one entry."""

from __future__ import annotations

from types import MappingProxyType

from ..errors import PlanError
from ..expr import CPU_VECTOR, emit
from ..runtime.variant import Variant
from ..target import ISAS, TARGETS, resolve_isa
from .backward import choose_backward
from .elements import choose_elements
from .forward import choose_forward
from .model import Plan
from .refuse import problems

# What every kernel unit is compiled with, beside the flags of its ISA. No -ffast-math: NaN, Inf and denormals count.
KERNEL_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fwrapv",  # integers of expressions wrap at 64 bits
    "-fno-exceptions",
    "-fno-rtti",
    "-Wall",
    "-Wextra",
)


def plan(variant: Variant, target: str = "cpu", isa: str = "native", *, spec: str = "") -> Plan:
    """How to build ``variant`` for ``target``; ``isa`` (of the cpu target) counts where the variant leaves it open.

    ``spec`` is the name of the spec it is from, for the first line of its sources. Raises PlanError, with everything
    that is wrong, if the target cannot do what the variant asks or has no schedule yet.
    """
    chosen = ISAS[resolve_isa(variant.isa if variant.isa != "native" else isa)]
    found = problems(variant, target, chosen)
    if found:
        raise PlanError(found)
    elements = choose_elements(variant, chosen)
    code = emit(variant, CPU_VECTOR)
    forward, why = choose_forward(variant, chosen, elements)
    backward = None
    if variant.backward:
        backward, reasons = choose_backward(variant, chosen, elements, code)
        why |= {f"backward.{name}": reason for name, reason in reasons.items()}
    why["isa"] = "this machine's most capable" if variant.isa == isa == "native" else "the spec's or the caller's"
    why["schedule"] = f"the one that {target} has"
    why["product"] = elements.why
    why["backward"] = "the spec's" if variant.backward else "the spec leaves it out"
    return Plan(
        variant=variant,
        spec=spec,
        target=target,
        schedule=TARGETS[target].schedule,
        isa=chosen.name,
        flags=(*KERNEL_FLAGS, *chosen.flags),
        code=code,
        forward=forward,
        backward=backward,
        why=MappingProxyType(dict(sorted(why.items()))),
    )
