"""What a variant is measured against: the same function by other means, in each one's own best layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from ..runtime.language import canonical, parse
from ..runtime.reference import mask_matrix, trees
from ..runtime.variant import Variant
from .closure import closure

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _is_causal(variant: Variant) -> bool:
    mask, _ = trees(variant)
    return mask is not None and canonical(mask) == canonical(parse("kv <= q", expect="mask"))


def sdpa(variant: Variant, shape: tuple[int, ...], params: Mapping[str, torch.Tensor]) -> Attention | None:
    """torch's scaled_dot_product_attention on contiguous [B, H, S, D], or None where it has no such function.

    ``shape`` is (B, H, Hk, Sq, Skv). Masks that torch knows by name go by name; others as the dense truth matrix it
    takes, made beforehand. Score changes and sinks it cannot express.
    """
    batch, heads, kv_heads, q_len, kv_len = shape
    if variant.score is not None or variant.sink:
        return None
    options: dict[str, Any] = {"scale": variant.scale, "enable_gqa": heads != kv_heads}
    if _is_causal(variant) and (q_len == kv_len or variant.align == "top_left"):
        options["is_causal"] = True
    elif variant.mask is not None:
        options["attn_mask"] = mask_matrix(variant, batch, heads, q_len, kv_len, params)
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options)


def flex(variant: Variant, shape: tuple[int, ...], params: Mapping[str, torch.Tensor]) -> Attention | None:
    """Compiled FlexAttention on contiguous [B, H, S, D] with its block mask, or None where this torch lacks it.

    The mask and score functions are the variant's own expressions, walked while torch.compile traces them.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return None
    if variant.sink:
        return None
    batch, heads, kv_heads, q_len, kv_len = shape
    offset = kv_len - q_len if variant.align == "bottom_right" else 0
    lengths = {"q_len": q_len, "kv_len": kv_len}

    def names(b: Any, h: Any, i: Any, j: Any, **more: Any) -> dict[str, Any]:
        hk = h // (heads // kv_heads)
        return {"b": b, "h": h, "hk": hk, "i": i, "j": j, "q": i + offset, "kv": j, **lengths, **more}

    block_mask = score_mod = None
    mask_tree, score_tree = trees(variant)
    if mask_tree is not None:
        mask = closure(mask_tree, params)
        block_mask = create_block_mask(
            lambda b, h, i, j: mask(names(b, h, i, j)), batch, heads, q_len, kv_len, device="cpu"
        )
    if score_tree is not None:
        score = closure(score_tree, params)

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score(names(b, h, i, j, s=s))

    compiled = torch.compile(flex_attention)
    options: dict[str, Any] = {"scale": variant.scale, "enable_gqa": heads != kv_heads}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, **options)

    return call
