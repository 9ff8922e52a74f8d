"""What the cpu schedule's forward kernel chooses, and what its templates print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...expr import KernelCode
from ...runtime.variant import Variant
from ...target import Isa
from ..pieces import body, scores
from .elements import Elements
from .registers import ROWS, WIDEST, register_tile

_TILE_BYTES = 256 << 10  # a tile of K and V, packed: a quarter of a second-level cache of 1 MiB, shared by two threads
_ITEM_BYTES = 128 << 10  # the rows of q and o of a work item
_MOST_KEYS, _LEAST_KEYS = 256, 64
_MOST_ROWS, _LEAST_ROWS = 48, 24


@dataclass(frozen=True)
class Forward:
    """Sizes of the forward kernel; see the constants at the top of a rendered one.

    ``tile_q`` query rows a work item, ``tile_kv`` keys a tile, ``rows`` query rows, ``key_vectors`` vectors of keys and
    ``value_vectors`` vectors of a value (in ``value_panels`` panels) in registers. A tile of keys that more than
    ``pack_readers`` items read is packed once, before. ``optimize`` is the compiler's level of optimisation.
    """

    tile_q: int
    tile_kv: int
    rows: int
    key_vectors: int
    value_vectors: int
    value_panels: int
    pack_readers: int
    optimize: str


def choose_forward(variant: Variant, isa: Isa, elements: Elements) -> tuple[Forward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    why: dict[str, str] = {}
    tile_kv, why["tile_kv"] = _tile_kv(variant, elements)
    tile_q, why["tile_q"] = _tile_q(variant)
    vectors = tile_kv // isa.lanes
    widest = WIDEST[isa.registers]
    key_vectors = next(each for each in range(widest, 0, -1) if vectors % each == 0 and each % elements.depth == 0)
    why["key_vectors"] = (
        f"of the {widest} at most that leave room for {ROWS} rows of accumulators, the most "
        f"that divide the {vectors} vectors of a tile"
    )
    value = register_tile(variant.value_dim, isa)
    why["value_vectors"] = why["value_panels"] = value.why
    rows = min(ROWS, tile_q)
    why["rows"] = f"{rows} × {max(key_vectors, value.vectors)} accumulators stay in {isa.registers} vector registers"
    why["pack_readers"] = (
        "packing costs about as much as one item's use of a tile at its least; two readers in turn find it in the "
        "cache, while more of them save by packing it once"
    )
    why["optimize"] = "the compiler's usual level for numeric loops"
    return Forward(tile_q, tile_kv, rows, key_vectors, value.vectors, value.panels, 2, "-O3"), why


def _tile_kv(variant: Variant, elements: Elements) -> tuple[int, str]:
    if variant.tiles.kv is not None:
        return variant.tiles.kv, variant.tiles.why("kv")
    a_key = (variant.head_dim + variant.value_dim) * elements.word_bytes // elements.depth
    tile = _MOST_KEYS
    while tile > _LEAST_KEYS and tile * a_key > _TILE_BYTES:
        tile //= 2
    return tile, (
        f"at most {_MOST_KEYS} keys (their scores by {ROWS} rows stay in the first-level cache), of {a_key} bytes "
        f"packed each: {tile * a_key >> 10} KiB of the {_TILE_BYTES >> 10} KiB that leave the second-level cache room"
    )


def _tile_q(variant: Variant) -> tuple[int, str]:
    if variant.tiles.q is not None:
        return variant.tiles.q, variant.tiles.why("q")
    a_row = (variant.head_dim + variant.value_dim) * 4
    fit = _ITEM_BYTES // a_row // ROWS * ROWS
    tile = max(_LEAST_ROWS, min(_MOST_ROWS, fit))
    return tile, (
        f"a multiple of {ROWS} rows up to {_MOST_ROWS}, which reuse a tile of keys often enough that memory does not "
        f"count; {tile} of {a_row} bytes of q and o are {tile * a_row >> 10} KiB"
    )


def forward_names(variant: Variant, code: KernelCode, forward: Forward) -> Mapping[str, object]:
    """What the templates of the forward kernel print besides the names that both directions share."""
    names: dict[str, object] = {
        "tile_q": forward.tile_q,
        "tile_kv": forward.tile_kv,
        "rows": forward.rows,
        "key_vectors": forward.key_vectors,
        "value_vectors": forward.value_vectors,
        "value_panels": forward.value_panels,
        "pack_readers": forward.pack_readers,
        "full_scores": scores(code, variant, code.score, tail=False),
        "partial_scores": scores(code, variant, code.score_mask if variant.mask else code.score, tail=True),
        "tile_test": body(code, variant, code.tile_test),
        "key_ranges": body(code, variant, code.key_ranges),
    }
    return names
