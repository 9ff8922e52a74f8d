"""What the cpu schedule cannot do, said before anything is chosen."""

from __future__ import annotations

import platform
from collections.abc import Iterator

from ...errors import Problem
from ...runtime.variant import Tiles, Variant
from ...target import Isa, is_x86

_LARGEST_TILE = 4096


def problems(variant: Variant, isa: Isa) -> Iterator[Problem]:
    """An instruction set that this machine's compiler does not know; tiles of the spec's that one cannot have."""
    if isa.features and not is_x86():
        yield Problem(
            f"{variant.name}: isa {isa.name} is for x86-64, and this machine is {platform.machine()}",
            hint="write `isa: portable`, or leave it out",
        )
    tiles = variant.tiles
    # Pairs of bf16 are adjacent keys in two vectors.
    step = isa.lanes * (2 if isa.bf16_dots and variant.dtype == "bf16" else 1)
    if tiles.stages is not None:
        yield Problem(f"{variant.name}: tiles.stages is for GPU targets", hint="leave it out for cpu")
    if tiles.turns is not None:
        yield Problem(f"{variant.name}: tiles.turns is for sm_90a", hint="leave it out for cpu")
    if variant.backward_tiles != Tiles():
        yield Problem(
            f"{variant.name}: backward_tiles is for GPU targets", hint="tiles are those of both directions for cpu"
        )
    if tiles.q is not None and not 1 <= tiles.q <= _LARGEST_TILE:
        yield Problem(f"{variant.name}: tiles.q {tiles.q} is out of range", hint=f"write 1 to {_LARGEST_TILE}")
    if tiles.kv is not None and (not step <= tiles.kv <= _LARGEST_TILE or tiles.kv % step):
        yield Problem(
            f"{variant.name}: tiles.kv {tiles.kv} is not whole vectors of {isa.name}",
            hint=f"write a multiple of {step} up to {_LARGEST_TILE}",
        )
