"""The names that the mma templates see. A template prints these and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..comments import comment, text_of
from ..model import Plan
from ..pieces import admission, body, scores
from .backward import backward_names
from .forward import Forward

_ELEMENTS = {"bf16": "Bf16", "f16": "F16"}


def shared_names(plan: Plan) -> Mapping[str, object]:
    """What the templates of both directions may print."""
    variant = plan.variant
    bottom_right = variant.align == "bottom_right"
    masked = variant.mask is not None
    return {
        "name": variant.name,
        "spec": comment(plan.spec),
        "mask_text": text_of(variant.mask, "none"),
        "score_text": text_of(variant.score, "s"),
        "element": _ELEMENTS[variant.dtype],
        "head_dim": variant.head_dim,
        "value_dim": variant.value_dim,
        "masked": masked,
        "sink": variant.sink,
        "dropout": variant.dropout,
        "contains": masked and variant.nonfinite == "contain",
        "qualifier": "__device__ __forceinline__ ",
        "span": "Span",
        # The position of query row i, as an expression of i, and what turns a Span of rows into one of positions.
        "position_of_i": "i + kv_len - q_len" if bottom_right else "i",
        "position_shift": "{kv_len - q_len}" if bottom_right else "",
    }


def expression_names(plan: Plan, room: str, unit: str, *, ends: bool = False) -> Mapping[str, Any]:
    """What forward templates print of a variant's expressions, for one thread's scores. ``room`` names the
    constant that says by how many powers of two weights may exceed 1; ``unit`` makes unchanged scores exponents.
    ``ends`` says that rows past the last one may see keys past the last one, where the mask lets them: such
    kernels read no value of those keys from memory."""
    variant, code = plan.variant, plan.code
    # Where a score is q · k alone, its scale is part of the exponent's unit: not beside a sink, which has another.
    scored = variant.score is not None or variant.sink
    return {
        "headers": ("cuda/array.h", "cuda/math.h") if code.declarations else ("cuda/math.h",),
        "params": "ForwardParams",
        # Sums of bf16's largest numbers overflow float32 where their mean does not: with weights so small that they sum
        # to 1 at most, none does. What is lost are the last bits of numbers below 2^-100.
        "shift": (
            f"({room} + static_cast<float>(32 - __clz(static_cast<int>(p.shape.kv_len)))){' * kLn2' if scored else ''}"
            if variant.dtype == "bf16"
            else "0.0f"
        ),
        "scored": scored,
        "scaled": "score * p.scale" if scored else "score",
        # Changed scores may be of any size: their differences are taken before they become exponents.
        "unit": "1.0f" if scored else unit,
        "turn": "kLog2e" if scored else "1.0f",
        **admission(code, variant, tail=not (ends and code.mask_ends)),
        "bands": (),  # what pairs have their elements of params from
        "full_scores": scores(code, variant, code.score, tail=False),
        "tile_test": body(code, variant, code.tile_test),
        "key_ranges": body(code, variant, code.key_ranges),
    }


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction print besides."""
    if direction == "backward":
        return backward_names(plan)
    assert isinstance(plan.forward, Forward)
    forward, masked = plan.forward, plan.variant.mask is not None
    # The unit is computed at each use: kept from the host, it takes a register of the loop from full_d128 for sm_80.
    names = expression_names(plan, "kSlack", "fmaxf(fabsf(p.scale), kLeastUnit) * kLog2e")
    apart = ("cuda/nonfinite.h",) if shared_names(plan)["contains"] else ()
    dropped = ("cuda/dropout.h",) if plan.variant.dropout else ()
    return {
        **names,
        "headers": (*names["headers"], *apart, *dropped),
        "block_row": "blocks - 1 - work % blocks" if masked else "work % blocks",
        "order_note": ", the last rows, which mostly see most, first" if masked else "",
        "tile_q": forward.tile_q,
        "tile_kv": forward.tile_kv,
        "warps": forward.warps,
        "stages": forward.stages,
        "shared_bytes": forward.shared_bytes,
        "asks_by_pair": True,
        "row_factor": "share" if plan.variant.dropout else "factor",  # of a row's sums
        "tiles_bytes": " + Tiles<kWarps>::kBytes" if masked else "",
        "blocks_per_sm": forward.blocks_per_sm,
        "next_stage": "stage ^ 1" if forward.stages > 1 else "0",
    }
