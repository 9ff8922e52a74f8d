"""The wgmma schedule, put together."""

from __future__ import annotations

from types import MappingProxyType

from ...errors import PlanError
from ...expr import CUDA_SCALAR, emit
from ...runtime.variant import Variant
from ...target import Target
from ..mma.refuse import too_large
from ..mma.schedule import KERNEL_FLAGS, no_bytes, row_bytes
from ..model import Plan
from ..pieces import body
from ..schedule import Schedule, StoredTiles
from .backward import Backward, choose_backward
from .forward import Forward, choose_forward
from .names import direction_names, shared_names
from .refuse import problems, too_wide
from .search import BACKWARD_SEARCH, SEARCH


def make(variant: Variant, target: Target, isa: str, spec: str) -> Plan:
    """The plan of a variant; ``isa`` is of CPUs. Raises PlanError."""
    del isa
    found = list(problems(variant))
    if found:
        raise PlanError(found)
    code = emit(variant, CUDA_SCALAR)
    by_head = bool({"h", "hk"} & set(body(code, variant, code.tile_test).needs))
    forward, why = choose_forward(variant, target, by_head, code)
    if found := [*too_large(variant, target, forward.shared_bytes), *too_wide(variant, target, forward)]:
        raise PlanError(found)
    why["schedule"] = f"{target.instruction}, which {target.title} has"
    backward = None
    if variant.backward:
        backward, reasons = choose_backward(variant, target, code, by_head)
        if found := list(too_large(variant, target, backward.shared_bytes, "backward_tiles")):
            raise PlanError(found)
        why |= {f"backward.{key}": reason for key, reason in reasons.items()}
        why["backward"] = "the spec asks for it"
    else:
        why["backward"] = "the spec leaves it out"
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


def stored_tiles(plan: Plan) -> StoredTiles | None:
    """What a kernel before it writes, as find_tiles of host/launch.h sizes it."""
    forward = plan.forward
    assert isinstance(forward, Forward)
    if not forward.word_bytes:
        return None
    return StoredTiles(forward.tile_q, forward.tile_kv, forward.word_bytes, forward.by_head)


WGMMA = Schedule(
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
    stored_tiles=stored_tiles,
)
