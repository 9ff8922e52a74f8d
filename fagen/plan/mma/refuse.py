"""What the mma schedule cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Problem
from ...runtime.variant import Variant
from ...target import Target
from .backward import KEYS, ROWS, STAGES, Backward


def problems(variant: Variant, target: Target) -> Iterator[Problem]:
    """Said before anything is chosen."""
    tiles = variant.tiles
    if tiles.q is not None and (tiles.q % 64 or not 64 <= tiles.q <= 256):
        yield Problem(
            f"{variant.name}: tiles.q {tiles.q} is not whole tiles of 4 warps", hint="write 64, 128, 192 or 256"
        )
    if tiles.kv is not None and (tiles.kv % 16 or not 16 <= tiles.kv <= 256):
        yield Problem(
            f"{variant.name}: tiles.kv {tiles.kv} is not whole steps of a product",
            hint="write a multiple of 16 up to 256",
        )
    if tiles.stages is not None and tiles.stages not in (1, 2):
        yield Problem(f"{variant.name}: tiles.stages {tiles.stages} is not built", hint="write 1 or 2")
    wanted = variant.backward_tiles
    for key, size, sizes in (("q", wanted.q, ROWS), ("kv", wanted.kv, KEYS), ("stages", wanted.stages, STAGES)):
        if size is not None and size not in sizes:
            known = ", ".join(map(str, sorted(sizes)))
            yield Problem(f"{variant.name}: backward_tiles.{key} {size} is not built", hint=f"there are {known}")
    if tiles.turns is not None:
        yield Problem(f"{variant.name}: tiles.turns is for sm_90a", hint=f"leave it out for {target.name}")


def too_large(variant: Variant, target: Target, shared_bytes: int, of: str = "tiles") -> Iterator[Problem]:
    """Tiles that do not fit the target's shared memory."""
    assert target.device is not None
    most = target.device.shared_per_block
    if shared_bytes > most:
        yield Problem(
            f"{variant.name}: its tiles need {shared_bytes} bytes of shared memory, {target.name} has {most} a block",
            hint=f"make the spec's {of} smaller, or leave them out",
        )


def backward_too_large(variant: Variant, target: Target, backward: Backward) -> Iterator[Problem]:
    """The same of backward tiles; and blocks of more rows than threads, each of which makes a row's notes."""
    yield from too_large(variant, target, max(backward.shared_bytes, backward.prepare_bytes), "backward_tiles")
    if backward.tile_q > backward.threads:
        yield Problem(
            f"{variant.name}: backward_tiles.q {backward.tile_q} is more than the {backward.threads} threads that "
            f"blocks of {backward.tile_kv} keys have",
            hint="make backward_tiles.q smaller, or backward_tiles.kv larger",
        )
