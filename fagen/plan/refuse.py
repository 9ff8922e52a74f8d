"""What a target cannot do, said before anything is planned."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from ..runtime.variant import Variant
from ..target import TARGETS, Isa, Target

_LARGEST_TILE = 4096


def problems(variant: Variant, target_name: str, isa: Isa) -> tuple[Problem, ...]:
    """Everything that keeps ``variant`` from being built for a target (on the CPU, for ``isa``); none if it can be."""
    target = TARGETS.get(target_name)
    if target is None:
        return (Problem(f"{variant.name}: unknown target `{target_name}`", hint=f"targets are {', '.join(TARGETS)}"),)
    found = list(_sizes(variant, target))
    if not target.built:
        found.append(Problem(f"{variant.name}: the schedule `{target.schedule}` for {target.name} is not built yet"))
    elif target.name == "cpu":
        found.extend(_cpu_tiles(variant, isa))
    return tuple(found)


def _sizes(variant: Variant, target: Target) -> Iterator[Problem]:
    if variant.dtype not in target.dtypes:
        taken = ", ".join(target.dtypes)
        yield Problem(f"{variant.name}: {target.name} has no {variant.dtype} kernels", hint=f"it takes {taken}")
    for key, size, dims in (
        ("head_dim", variant.head_dim, target.head_dim),
        ("value_dim", variant.value_dim, target.value_dim),
    ):
        if size not in dims:
            yield Problem(f"{variant.name}: {key} {size} is not built for {target.name}", hint=f"it takes {dims}")


def _cpu_tiles(variant: Variant, isa: Isa) -> Iterator[Problem]:
    tiles = variant.tiles
    # Pairs of bf16 are adjacent keys in two vectors.
    step = isa.lanes * (2 if isa.bf16_dots and variant.dtype == "bf16" else 1)
    if tiles.stages is not None:
        yield Problem(f"{variant.name}: tiles.stages is for GPU targets", hint="leave it out for cpu")
    if tiles.q is not None and not 1 <= tiles.q <= _LARGEST_TILE:
        yield Problem(f"{variant.name}: tiles.q {tiles.q} is out of range", hint=f"write 1 to {_LARGEST_TILE}")
    if tiles.kv is not None and (not step <= tiles.kv <= _LARGEST_TILE or tiles.kv % step):
        yield Problem(
            f"{variant.name}: tiles.kv {tiles.kv} is not whole vectors of {isa.name}",
            hint=f"write a multiple of {step} up to {_LARGEST_TILE}",
        )
