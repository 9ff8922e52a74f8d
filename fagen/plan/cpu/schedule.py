"""The cpu schedule, put together."""

from __future__ import annotations

from types import MappingProxyType

from ...errors import PlanError
from ...expr import CPU_VECTOR, emit
from ...runtime.variant import Variant
from ...target import ISAS, Target, resolve_isa
from ..model import Plan
from ..schedule import Schedule
from .backward import Backward, choose_backward
from .elements import choose_elements
from .forward import Forward, choose_forward
from .held import key_bytes, row_bytes
from .names import direction_names, shared_names
from .refuse import problems
from .search import SEARCH

# What every kernel unit is compiled with, beside the flags of its ISA. No -ffast-math: NaN, Inf and denormals count.
KERNEL_FLAGS = (
    "-std=c++17",
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


def make(variant: Variant, target: Target, isa: str, spec: str) -> Plan:
    """The plan of a variant; ``isa`` counts where the variant leaves it open. Raises PlanError."""
    chosen = ISAS[resolve_isa(variant.isa if variant.isa != "native" else isa)]
    found = tuple(problems(variant, chosen))
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
    why["schedule"] = f"the one that {target.name} has"
    why["product"] = elements.why
    why["backward"] = "the spec's" if variant.backward else "the spec leaves it out"
    return Plan(
        variant=variant,
        spec=spec,
        target=target.name,
        schedule=target.schedule,
        isa=chosen.name,
        flags=(*KERNEL_FLAGS, *chosen.flags),
        code=code,
        forward=forward,
        backward=backward,
        why=MappingProxyType(dict(sorted(why.items()))),
    )


CPU = Schedule(
    make=make,
    forward=Forward,
    backward=Backward,
    shared_names=shared_names,
    direction_names=direction_names,
    key_bytes=key_bytes,
    row_bytes=row_bytes,
    suffix=".cpp",
    search=SEARCH,
)
