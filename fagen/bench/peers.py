"""What a variant is measured against: the same function by other means, in each one's own best layout."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..costs import ProblemSize
from ..errors import FagenError, Problem
from ..runtime.arguments import run_time_inputs
from ..runtime.check.cases import Case
from ..runtime.check.params import name_bounds, value_bounds
from ..runtime.evaluate import Evaluator
from ..runtime.language import Node, canonical, parse
from ..runtime.language.nodes import Name, walk
from ..runtime.reference import mask_matrix, names_of, trees
from ..runtime.variant import Variant
from .closure import closure
from .inputs import DROPOUT_P
from .measure import Context

# torch's own kernels for cards.
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


@dataclass(frozen=True)
class Peer:
    """``call(q, k, v)``, within ``context``, gives o, all contiguous [B, H, S, D]; ``differentiable`` by autograd where
    it is measured."""

    call: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    differentiable: bool
    context: Context = nullcontext


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
    options = _sdpa_options(variant, size)
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
    options = {**_sdpa_options(variant, size), "is_causal": causal}
    return Peer(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options),
        differentiable=True,
        context=partial(sdpa_kernel, BACKENDS[backend]),  # around many calls: entering it takes as long as a call
    )


def unfused(
    variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor], device: str = "cpu"
) -> Peer | None:
    """The formula as plain PyTorch has it, a product, a softmax in float32 and a product, with whole score matrices in
    the variant's dtype (in float32 where an expression changes them); None where there is a sink.

    The mask is made beforehand. A row that it leaves nothing is NaN.
    """
    if variant.sink:
        return None
    mask, score = trees(variant)
    shut = None if mask is None else ~admitted(variant, size, params, device)
    scale = variant.head_dim**-0.5 if variant.scale is None else variant.scale
    group = size.heads // size.kv_heads
    extents = {"B": size.batch, "H": size.heads, "Hk": size.kv_heads, "Sq": size.q_len, "Skv": size.kv_len}
    b, h, i = (torch.arange(extents[extent], device=device) for extent in ("B", "H", "Sq"))
    names = names_of(variant, extents, b[:, None, None, None], h[:, None, None], i[:, None])
    inputs = run_time_inputs(variant, params, extents, torch.float32)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if group != 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        x = torch.matmul(q, k.transpose(-2, -1)) * scale
        if score is not None:
            x = Evaluator({**names, "s": x.float()}, inputs, torch.float32)(score)
        if shut is not None:
            x = x.masked_fill(shut, -torch.inf)
        weights = torch.softmax(x, -1, dtype=torch.float32).to(v.dtype)
        if variant.dropout:
            weights = F.dropout(weights, DROPOUT_P)
        return torch.matmul(weights, v)

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
            return first_line(error)
    return ""


def first_line(error: Exception) -> str:
    """What an error says, in a line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def flex(variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor], device: str = "cpu") -> Peer | None:
    """Compiled FlexAttention with its block mask, or None where this torch lacks it, or it the function: it has no
    sink and no dropout.

    The mask and score functions are the variant's own expressions, walked while torch.compile traces them. On the CPU
    FlexAttention has no backward pass. What an earlier call compiled is forgotten: torch compiles a function anew only
    so many times, and then runs it as it stands.

    Raises FagenError where torch lies under a path with a space, which its compiler does not put into quotes.
    """
    try:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    except ImportError:
        return None
    if variant.sink or variant.dropout:
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
    case = Case("bench", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads)
    bounds = name_bounds(variant, case) | {name: value_bounds(tensor) for name, tensor in params.items()}
    if mask_tree is not None:
        mask = closure(mask_tree, params, device, bounds)
        # Not as many as there are where all are alike: making it takes the room of the dense mask.
        batches = size.batch if _uses(mask_tree, "b") else None
        heads = size.heads if _uses(mask_tree, "h", "hk") else None
        block_mask = create_block_mask(
            lambda b, h, i, j: mask(names(b, h, i, j)), batches, heads, size.q_len, size.kv_len, device=device
        )
    if score_tree is not None:
        score = closure(score_tree, params, device, bounds)

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score(names(b, h, i, j, s=s))

    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    options: dict[str, Any] = {"scale": variant.scale, "enable_gqa": group != 1}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return compiled(q, k, v, score_mod=score_mod, block_mask=block_mask, **options)

    # Gradients are taken over one graph again and again, so that none of its tensors may be given away.
    context = partial(functorch_config.patch, donated_buffer=False)
    return Peer(call, differentiable=device != "cpu", context=context)


def _sdpa_options(variant: Variant, size: ProblemSize) -> dict[str, Any]:
    """Of a call of torch's attention, but for its mask."""
    return {
        "scale": variant.scale,
        "enable_gqa": size.heads != size.kv_heads,
        "dropout_p": DROPOUT_P if variant.dropout else 0.0,
    }


def _uses(tree: Node, *names: str) -> bool:
    return any(isinstance(node, Name) and node.id in names for node in walk(tree))


def _is_causal(variant: Variant, size: ProblemSize) -> bool:
    """Whether the mask is what torch calls causal: its first query sees the first key alone."""
    mask, _ = trees(variant)
    if mask is None or not (size.q_len == size.kv_len or variant.align == "top_left"):
        return False
    return canonical(mask) == canonical(parse("kv <= q", expect="mask"))
