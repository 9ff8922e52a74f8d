"""What a variant is measured against: the same function by other means, in each one's own best layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..costs import ProblemSize
from ..errors import FagenError, Problem
from ..runtime.language import Node, canonical, parse
from ..runtime.language.nodes import Name, walk
from ..runtime.reference import mask_matrix, trees
from ..runtime.variant import Variant
from .closure import closure

# torch's own kernels for cards.
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Peer:
    """``call(q, k, v)`` gives o, all contiguous [B, H, S, D]; ``differentiable`` by autograd where it is measured."""

    call: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    differentiable: bool


def admitted(
    variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor], device: str = "cpu"
) -> torch.Tensor:
    """Truth values that broadcast to [B, H, Sq, Skv]: the pairs that the mask admits."""
    return mask_matrix(variant, size.batch, size.heads, size.q_len, size.kv_len, params, size.kv_heads, device)


def sdpa(variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor]) -> Peer | None:
    """torch's scaled_dot_product_attention, or None where it has no such function.

    Masks that torch knows by name go by name; others as the dense truth matrix it takes, made beforehand. Score changes
    and sinks it cannot express.
    """
    if variant.score is not None or variant.sink:
        return None
    options: dict[str, Any] = {"scale": variant.scale, "enable_gqa": size.heads != size.kv_heads}
    if _is_causal(variant, size):
        options["is_causal"] = True
    elif variant.mask is not None:
        options["attn_mask"] = admitted(variant, size, params)
    return Peer(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), differentiable=True)


def fused(variant: Variant, size: ProblemSize, backend: str) -> Peer | None:
    """One of torch's BACKENDS and no other, or None where it has no such function.

    No mask, or the causal one; another as a dense matrix is not what these kernels are for, and "flash" refuses it.
    What they refuse besides, as head dims, shows at the call: see :func:`refusal`.
    """
    causal = _is_causal(variant, size)
    if variant.score is not None or variant.sink or (variant.mask is not None and not causal):
        return None
    options: dict[str, Any] = {"scale": variant.scale, "is_causal": causal, "enable_gqa": size.heads != size.kv_heads}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(q, k, v, **options)

    return Peer(call, differentiable=True)


def refusal(call: Callable[[], object]) -> str:
    """Why a peer does not take its inputs, in a line; "" if it does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each reason for not using a backend
        try:
            call()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return str(error).strip().partition("\n")[0] or type(error).__name__
    return ""


def flex(variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor], device: str = "cpu") -> Peer | None:
    """Compiled FlexAttention with its block mask, or None where this torch, or FlexAttention, lacks it.

    The mask and score functions are the variant's own expressions, walked while torch.compile traces them. On the CPU
    FlexAttention has no backward pass. What an earlier call compiled is forgotten: torch compiles a function anew only
    so many times, and then runs it as it stands.

    Raises FagenError where torch lies under a path with a space, which its compiler does not put into quotes.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return None
    if variant.sink:
        return None
    if " " in torch.__file__:
        place = Path(torch.__file__).parent
        raise FagenError(
            Problem(
                f"torch.compile does not work from a path with a space, {place}, and FlexAttention needs it",
                hint="leave out --flex, or install torch elsewhere",
            )
        )
    group = size.heads // size.kv_heads
    offset = size.kv_len - size.q_len if variant.align == "bottom_right" else 0
    lengths = {"q_len": size.q_len, "kv_len": size.kv_len}

    def names(b: Any, h: Any, i: Any, j: Any, **more: Any) -> dict[str, Any]:
        return {"b": b, "h": h, "hk": h // group, "i": i, "j": j, "q": i + offset, "kv": j, **lengths, **more}

    block_mask = score_mod = None
    mask_tree, score_tree = trees(variant)
    if mask_tree is not None:
        mask = closure(mask_tree, params, device)
        # Not as many as there are where all are alike: making it takes the room of the dense mask.
        batches = size.batch if _uses(mask_tree, "b") else None
        heads = size.heads if _uses(mask_tree, "h", "hk") else None
        block_mask = create_block_mask(
            lambda b, h, i, j: mask(names(b, h, i, j)), batches, heads, size.q_len, size.kv_len, device=device
        )
    if score_tree is not None:
        score = closure(score_tree, params, device)

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score(names(b, h, i, j, s=s))

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    options: dict[str, Any] = {"scale": variant.scale, "enable_gqa": group != 1}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, **options)

    return Peer(call, differentiable=device != "cpu")


def _uses(tree: Node, *names: str) -> bool:
    return any(isinstance(node, Name) and node.id in names for node in walk(tree))


def _is_causal(variant: Variant, size: ProblemSize) -> bool:
    """Whether the mask is what torch calls causal: its first query sees the first key alone."""
    mask, _ = trees(variant)
    if mask is None or not (size.q_len == size.kv_len or variant.align == "top_left"):
        return False
    return canonical(mask) == canonical(parse("kv <= q", expect="mask"))
