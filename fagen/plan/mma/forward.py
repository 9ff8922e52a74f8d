"""What the mma schedule's forward kernel chooses."""

from __future__ import annotations

from dataclasses import dataclass

from ...runtime.variant import Variant
from ...target import Device, Target

_THREADS_PER_WARP = 32
# Rows of 16 bytes are what one copy moves; eight of them are all banks.
_CHUNK = 16
_WARPS = 4
_NOTES = 32  # of a block
_TILES = 16 * _WARPS  # Tiles<kWarps>::kBytes of cuda/tiles.h: what the mask admits of 32 tiles
_RESERVED = 1 << 10  # of shared memory, for each block that a multiprocessor holds
_LARGE_SHARED = 160 << 10  # of an sm_80 or larger multiprocessor, against the 100 KiB and less of the others


@dataclass(frozen=True)
class Forward:
    """Sizes of the forward kernel; see the constants at the top of a rendered one.

    ``tile_q`` query rows a block of threads, which are ``threads`` in ``warps`` warps; ``tile_kv`` keys a tile, of
    which ``stages`` are in shared memory, ``shared_bytes`` in all; ``blocks_per_sm`` is what registers are allotted
    for.
    """

    tile_q: int
    tile_kv: int
    warps: int
    stages: int
    threads: int
    shared_bytes: int
    blocks_per_sm: int
    optimize: str

    @property
    def boxes(self) -> tuple[int, int]:
        """Of rows of Q and of keys: it takes no tensor maps."""
        return 0, 0

    @property
    def draws(self) -> bool:
        """Whether blocks are drawn: the card itself gives them out."""
        return False

    @property
    def word_bytes(self) -> int:
        """Of what a kernel before it stores: it asks the mask itself."""
        return 0

    @property
    def by_head(self) -> bool:
        """Whether that is stored for each head."""
        return False


def row_bytes(dim: int) -> int:
    """Bytes of a row in shared memory: Rows<dim>::kBytes of cuda/rows.h."""
    chunks = -(-dim // 16) * 2
    return (chunks if chunks % 8 == 0 else chunks | 1) * _CHUNK


def shared_bytes(variant: Variant, tile_q: int, tile_kv: int, stages: int) -> int:
    """Shared memory of a block: its queries, whose place o takes in the end, the tiles of K and V, and the mask's."""
    head, value = row_bytes(variant.head_dim), row_bytes(variant.value_dim)
    tensors = tile_q * max(head, value) + stages * tile_kv * (head + value)
    return tensors + _NOTES + (0 if variant.mask is None else _TILES)


def choose_forward(variant: Variant, target: Target) -> tuple[Forward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    why: dict[str, str] = {}
    device = target.device
    assert device is not None
    tile_q, tile_kv, stages = _tiles(variant, device, why)
    warps = _WARPS
    why["warps"] = (
        f"{tile_q // warps} rows each, so that what is read of K and V is used by as many rows as fit registers"
    )
    bytes_ = shared_bytes(variant, tile_q, tile_kv, stages)
    why["shared_bytes"] = f"{tile_q} rows of Q, then of O, and {stages} × {tile_kv} rows of K and V"
    why["threads"] = f"{warps} warps"
    why["blocks_per_sm"] = "the least that is asked for: registers are left to the compiler"
    why["optimize"] = "the compiler's usual level"
    threads = warps * _THREADS_PER_WARP
    return Forward(tile_q, tile_kv, warps, stages, threads, bytes_, 1, "-O3"), why


def _tiles(variant: Variant, device: Device, why: dict[str, str]) -> tuple[int, int, int]:
    """Query rows, keys and stages."""
    width = max(variant.head_dim, variant.value_dim)
    large = device.shared_per_sm >= _LARGE_SHARED
    rows = 128 if width <= 128 else 64
    why["tile_q"] = (
        f"sums of {rows // 4} rows by {variant.value_dim} columns stay in a warp's registers beside the scores"
    )
    # What an expression keeps of positions and params takes registers from the scores; so does what dropout draws. The
    # compiler for cards of little shared memory (seen: sm_120) needs more for a soft cap than that for the others.
    scored = variant.score is not None and (width > 64 or not large)
    spare = bool(variant.params) or variant.sink or variant.dropout or scored
    keys = 64 if width > 128 else 48 if width > 64 and spare else 64 if width > 64 else 96 if spare else 128
    why["tile_kv"] = f"scores of {rows // 4} rows by {keys} keys are what registers have left"
    while not large and keys > 32 and 2 * (shared_bytes(variant, rows, keys, 1) + _RESERVED) > device.shared_per_sm:
        keys -= 16
        why["tile_kv"] = f"{keys} keys leave room in {device.shared_per_sm >> 10} KiB of shared memory for two blocks"
    stages = 1
    why["stages"] = "one: the next tile's keys arrive during the second product, its values during the first"
    for name, size in (("q", variant.tiles.q), ("kv", variant.tiles.kv), ("stages", variant.tiles.stages)):
        if size is None:
            continue
        why["stages" if name == "stages" else f"tile_{name}"] = variant.tiles.why(name)
        if name == "q":
            rows = size
        elif name == "kv":
            keys = size
        else:
            stages = size
    while (
        variant.tiles.kv is None and shared_bytes(variant, rows, keys, stages) > device.shared_per_block and keys > 16
    ):
        keys -= 16
        why["tile_kv"] = f"what fits {device.shared_per_block >> 10} KiB of shared memory"
    return rows, keys, stages
