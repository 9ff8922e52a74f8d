"""What the wgmma schedule cannot do."""

from __future__ import annotations

from collections.abc import Iterator

from ...errors import Problem
from ...runtime.variant import Variant
from ...target import Target
from .backward import ROWS
from .forward import Forward, registers_at_entry


def backward_problems(variant: Variant) -> Iterator[Problem]:
    """What backward cannot do."""
    if not variant.backward:
        return
    wanted, wide = variant.backward_tiles, max(variant.head_dim, variant.value_dim) > 128
    if wanted.q is not None and wanted.q not in ROWS:
        known = ", ".join(map(str, ROWS))
        yield Problem(f"{variant.name}: backward_tiles.q {wanted.q} is not built", hint=f"there are {known}")
    if wanted.q is not None and wanted.q < 64 and variant.head_dim <= 64:
        yield Problem(
            f"{variant.name}: backward_tiles.q {wanted.q} is less than two warpgroups share", hint="write 64 or more"
        )
    keys = 64 if wide else 128
    if wanted.kv not in (None, keys):
        yield Problem(
            f"{variant.name}: backward_tiles.kv {wanted.kv} is not built beside these head dims",
            hint=f"write {keys}, or leave it out",
        )
    if wanted.stages not in (None, 2, *(1,) * wide):
        yield Problem(
            f"{variant.name}: backward_tiles.stages {wanted.stages} is not built beside these head dims",
            hint="write 1 or 2" if wide else "write 2, or leave it out",
        )


def problems(variant: Variant) -> Iterator[Problem]:
    """Said before anything is chosen."""
    yield from backward_problems(variant)
    tiles = variant.tiles
    if tiles.q is not None and tiles.q not in (64, 128, 192):
        yield Problem(f"{variant.name}: tiles.q {tiles.q} is not whole warpgroups", hint="write 64, 128 or 192")
    if tiles.kv is not None and (tiles.kv % 16 or not 16 <= tiles.kv <= 256):
        yield Problem(
            f"{variant.name}: tiles.kv {tiles.kv} is not whole steps of a product",
            hint="write a multiple of 16 up to 256",
        )
    if tiles.stages is not None and not 2 <= tiles.stages <= 4:
        yield Problem(f"{variant.name}: tiles.stages {tiles.stages} is not built", hint="write 2, 3 or 4")
    if tiles.q == 64 and tiles.turns not in (None, "none"):
        yield Problem(
            f"{variant.name}: tiles.turns {tiles.turns} takes two warpgroups, and tiles.q 64 has one",
            hint="write none, or leave it out",
        )


_BESIDE_SUMS = 30  # registers that ptxas was seen to ask for beside the sums of one product


def too_wide(variant: Variant, target: Target, forward: Forward) -> Iterator[Problem]:
    """Products whose sums a thread cannot hold: all threads of a block begin with as many registers."""
    assert target.device is not None
    columns = max(forward.tile_kv, variant.value_dim)
    needed = columns // 2 + _BESIDE_SUMS
    most = registers_at_entry(target.device, forward.groups)
    if needed > most:
        yield Problem(
            f"{variant.name}: a product of {columns} columns takes {needed} registers of a thread, and blocks of "
            f"{forward.tile_q} rows leave it {most}",
            hint="make tiles.q or tiles.kv smaller, or leave them out",
        )
