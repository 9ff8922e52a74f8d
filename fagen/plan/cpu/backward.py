"""What the cpu schedule's backward kernel chooses, and what its templates print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...expr import KernelCode
from ...runtime.variant import Variant
from ...target import Isa
from ..pieces import body
from .elements import Elements
from .param_sums import param_sums
from .slopes import slopes, weights

# Rows of A in registers: a power of two, as rows of one product are columns of another. Measured on a Zen 4 core: 8×2
# reaches 94 % of the multiply-add peak from the second-level cache, and 8×3 as much.
_ROWS = {32: 8, 16: 4}
_WIDEST = {32: 3, 16: 2}
_KEY_VECTORS = 2

_TILE_Q = 64
_BLOCK_KV = 64
_MOST_KEYS = 256
_SCRATCH_BYTES = 896 << 10  # of a second-level cache of 1 MiB
_ITEMS_A_THREAD = 4
_ITEMS = 64


@dataclass(frozen=True)
class Backward:
    """Sizes of the backward kernel; see the constants at the top of a rendered one.

    A work item has at most ``tile_kv`` keys, which it takes against ``tile_q`` query rows at a time; the mask is asked
    about ``block_kv`` keys at a time. ``rows`` rows by ``key_vectors``, ``head_vectors`` or ``value_vectors`` vectors
    are in registers, the last two in ``head_panels`` and ``value_panels`` panels. ``enough`` items (for each thread, if
    ``by_thread``) are aimed at. ``pairs`` says whether the operands of products are pairs of bf16, ``sums`` of each
    param with a gradient who adds it up: see param_sums. ``optimize`` is the compiler's level of optimisation.
    """

    tile_q: int
    tile_kv: int
    block_kv: int
    rows: int
    key_vectors: int
    head_vectors: int
    head_panels: int
    value_vectors: int
    value_panels: int
    enough: int
    by_thread: bool
    pairs: bool
    sums: Mapping[str, str]
    optimize: str


def choose_backward(
    variant: Variant, isa: Isa, elements: Elements, code: KernelCode
) -> tuple[Backward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    why: dict[str, str] = {}
    rows = _ROWS[isa.registers]
    widest = _WIDEST[isa.registers]
    why["rows"] = f"a power of two whose accumulators, by {widest} vectors, {isa.registers} registers hold"
    head = _panels(variant.head_dim, isa)
    value = _panels(variant.value_dim, isa)
    why["head_vectors"] = why["head_panels"] = _panels_why(variant.head_dim, isa, head)
    why["value_vectors"] = why["value_panels"] = _panels_why(variant.value_dim, isa, value)
    tile_q = variant.tiles.q or _TILE_Q
    why["tile_q"] = (
        variant.tiles.why("q") if variant.tiles.q else "rows enough to hide the loads and stores of dK and dV"
    )
    widths = (head[0] * head[1] * isa.lanes, value[0] * value[1] * isa.lanes)
    tile_kv, why["tile_kv"] = _tile_kv(variant, elements, tile_q, widths)
    vectors = tile_kv // isa.lanes
    key_vectors = _KEY_VECTORS if vectors % _KEY_VECTORS == 0 else 1
    why["key_vectors"] = f"{rows} × {key_vectors} accumulators; a tile has {vectors} vectors of keys"
    block_kv = _BLOCK_KV if tile_kv % _BLOCK_KV == 0 and _BLOCK_KV % (key_vectors * isa.lanes) == 0 else tile_kv
    why["block_kv"] = "as fine as packed panels allow without asking the mask too often"
    sums = param_sums(variant, code)
    parts = any(each.mode == "part" for each in sums.params)
    enough = _ITEMS if parts else _ITEMS_A_THREAD
    why["enough"] = (
        "a fixed number, so that gradients of params are the same whatever the number of threads"
        if parts
        else "so that threads end at about the same time; the cut changes no sum"
    )
    why["by_thread"] = why["enough"]
    why |= {f"sums.{each.name}": each.why for each in sums.params}
    why["optimize"] = "-O3 takes twice as long to compile and gains nothing: the loops are vectors already"
    why["sums"] = "by how their reads are indexed"
    pairs = elements.depth == 2
    why["pairs"] = elements.why
    chosen = Backward(
        tile_q=tile_q,
        tile_kv=tile_kv,
        block_kv=block_kv,
        rows=rows,
        key_vectors=key_vectors,
        head_vectors=head[0],
        head_panels=head[1],
        value_vectors=value[0],
        value_panels=value[1],
        enough=enough,
        by_thread=not parts,
        pairs=pairs,
        sums={each.name: each.mode for each in sums.params},
        optimize="-O2",
    )
    return chosen, why


def _panels(columns: int, isa: Isa) -> tuple[int, int]:
    """Vectors of a panel, and panels, for so many columns: what costs least, a load being as dear as a product."""
    needed = -(-columns // isa.lanes)
    rows = _ROWS[isa.registers]

    def cost(vectors: int) -> tuple[int, int]:
        panels = -(-needed // vectors)
        return panels * max(rows * vectors, rows + vectors), -vectors

    vectors = min(range(1, _WIDEST[isa.registers] + 1), key=cost)
    return vectors, -(-needed // vectors)


def _panels_why(columns: int, isa: Isa, chosen: tuple[int, int]) -> str:
    vectors, panels = chosen
    padding = vectors * panels * isa.lanes - columns
    return f"the fewest instructions: {panels} × {vectors} vectors of {isa.lanes} pad {columns} columns by {padding}"


def _tile_kv(variant: Variant, elements: Elements, tile_q: int, widths: tuple[int, int]) -> tuple[int, str]:
    if variant.tiles.kv is not None:
        return variant.tiles.kv, variant.tiles.why("kv")
    tile = _MOST_KEYS
    while tile > _BLOCK_KV and _scratch(elements, tile_q, tile, widths) > _SCRATCH_BYTES:
        tile //= 2
    size = _scratch(elements, tile_q, tile, widths)
    return tile, (
        f"at most {_MOST_KEYS} keys, for which queries are packed once; {size >> 10} KiB of the "
        f"{_SCRATCH_BYTES >> 10} KiB that may stay in the second-level cache"
    )


def _scratch(elements: Elements, tile_q: int, tile_kv: int, widths: tuple[int, int]) -> int:
    """Bytes that a work item goes through again and again."""
    head, value = widths
    size = elements.word_bytes // elements.depth
    keys = tile_kv * ((2 * head + value) * size + (head + value) * 4)
    queries = tile_q * (head + value) * size * elements.depth
    pairs = tile_q * tile_kv * (8 + (6 if elements.depth == 2 else 0))
    return keys + queries + pairs


def backward_names(variant: Variant, code: KernelCode, backward: Backward) -> Mapping[str, object]:
    """What the templates of the backward kernel print besides the names that both directions share."""
    sums = param_sums(variant, code)
    return {
        "tile_q": backward.tile_q,
        "tile_kv": backward.tile_kv,
        "block_kv": backward.block_kv,
        "rows": backward.rows,
        "key_vectors": backward.key_vectors,
        "head_vectors": backward.head_vectors,
        "head_panels": backward.head_panels,
        "value_vectors": backward.value_vectors,
        "value_panels": backward.value_panels,
        **_enough(backward),
        **_operands(backward.pairs),
        "full_slopes": slopes(code, variant, sums, code.score_grad, tail=False),
        "partial_slopes": slopes(code, variant, sums, code.score_grad_mask or code.score_grad, tail=True),
        "row_weights": weights(code, variant),
        "tile_test": body(code, variant, code.tile_test),
        "query_ranges": body(code, variant, code.query_ranges),
        # What multiplies a pair's dO, and all that was summed of a value's gradient.
        "used_weight": "(kept ? weight : vf{})" if variant.dropout else "weight",
        "value_factor": "p.dropout.factor" if variant.dropout else "1.0f",
        "sums": sums.parts,
        "direct": sums.direct,
        "apart": sums.apart,
        "in_line": bool(sums.parts or sums.apart),
    }


def _enough(backward: Backward) -> dict[str, object]:
    if backward.by_thread:
        return {
            "enough_name": "kItemsAThread",
            "enough": backward.enough,
            "enough_note": "work items for each thread, if there are keys enough",
            "enough_items": "kItemsAThread * p.pool->threads",
        }
    return {
        "enough_name": "kItems",
        "enough": backward.enough,
        "enough_note": "work items, if there are keys enough, whatever the number of threads",
        "enough_items": "kItems",
    }


def _operands(pairs: bool) -> Mapping[str, object]:
    """How the products' operands are called: float32 operands are used as they are, pairs are made of them."""
    words = "({0} + kLanes - 1) / kLanes * kLanes"
    return {
        "pairs": pairs,
        "query_words": words.format("kHeadWords") if pairs else "kHeadWidth",
        "grad_words": words.format("kValueWords") if pairs else "kValueWidth",
        "weights_by_row": "own.weight_pairs" if pairs else "own.weights",
        "slopes_by_row": "own.slope_pairs" if pairs else "own.slopes",
        "slopes_by_key": "own.slope_words" if pairs else "own.slopes",
        "q_by_row": "own.q_pairs" if pairs else "own.q",
        "d_o_by_row": "own.d_o_pairs" if pairs else "own.d_o",
    }
