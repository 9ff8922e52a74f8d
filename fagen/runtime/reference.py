"""The oracle: a variant's formula in plain torch, in float64, straight from the parse tree.

It shares nothing with the compiler's own handling of expressions, so that the two can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .arguments import Arguments, arguments, run_time_inputs
from .dropout import checked as checked_dropout
from .dropout import kept_pairs
from .evaluate import Evaluator
from .language import parse
from .language.nodes import Node
from .products import dropped, scores, weighted
from .variant import Param, Variant

BLOCK = 2**20  # pairs computed at once: 8 MiB a temporary, and there are about ten
KEPT = 2**22  # pairs whose temporaries autograd may keep; beyond, they are computed again for the gradients


def reference(
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    sink: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """(o, lse) of a variant, differentiable by autograd (to any order) in q, k, v, sink and real params.

    q [B, Sq, H, D], k [B, Skv, Hk, D], v [B, Skv, Hk, Dv] with ``layout`` bshd, sequence and heads exchanged with
    bhsd; any strides, any real dtype. ``scale`` overrides the variant's; ``sink`` [H]; ``params`` by name, cast to
    the declared kind; with ``dropout_p`` weights are dropped by the numbers of ``rng_state``, [2] int64. o is like q
    with Dv, lse [B, H, Sq]; both in ``dtype``, in which all is computed. A gradient has its tensor's dtype, so pass
    float64 tensors to get float64 gradients.

    Raises ValueError for shapes that do not fit (the message names them) and TypeError for dtypes.
    """
    dropout = checked_dropout(variant.name, variant.dropout, dropout_p, rng_state)
    checked = arguments(variant, q, k, v, scale, sink, params or {}, dtype, None, dropout)
    return attend(variant, checked, dtype, None)


def mask_matrix(
    variant: Variant,
    B: int,
    H: int,
    Sq: int,
    Skv: int,
    params: Mapping[str, Tensor],
    Hk: int | None = None,
    device: str = "cpu",
) -> Tensor:
    """Which pairs the mask admits: truth values that broadcast to [B, H, Sq, Skv]; all are without a mask.

    ``Hk`` defaults to H. It is computed where the params are; without any, on ``device``.
    """
    extents = {"B": B, "H": H, "Hk": H if Hk is None else Hk, "Sq": Sq, "Skv": Skv}
    inputs = run_time_inputs(variant, params, extents, torch.float64)
    place = next(iter(inputs.values())).device if inputs else torch.device(device)
    mask, _ = trees(variant)
    if mask is None:
        return torch.ones(1, 1, 1, 1, dtype=torch.bool, device=place)
    b, h, i = (torch.arange(extents[extent], device=place) for extent in ("B", "H", "Sq"))
    names = names_of(variant, extents, b[:, None, None, None], h[:, None, None], i[:, None])
    result = Evaluator(names, inputs, torch.float64)(mask)
    return result.reshape((1,) * (4 - result.ndim) + tuple(result.shape))


def attend(variant: Variant, args: Arguments, dtype: torch.dtype, unit: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """(o, lse) in ``dtype``, block by block. With ``unit``, products are of numbers rounded to it."""
    heads, rows, keys = args.q.shape[0], args.q.shape[1], args.k.shape[1]
    pairs = rows * keys
    heads_a_block = max(1, min(heads, BLOCK // max(pairs, 1)))
    rows_a_block = max(1, min(rows, BLOCK // max(keys, 1)))
    again = heads * pairs > KEPT and torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
    found: list[tuple[Tensor, Tensor]] = []
    sink = args.sink if args.sink is not None else args.q.new_empty(heads, 0)
    # split() rather than slices: its gradient is one concatenation, not a sum of padded tensors.
    split = [tensor.split(heads_a_block) for tensor in (args.q, args.k, args.v, sink)]
    with torch.autocast(args.q.device.type, enabled=False):
        for first, (q, k, v, own_sink) in enumerate(zip(*split, strict=True)):
            head = torch.arange(first * heads_a_block, first * heads_a_block + q.shape[0], device=q.device)
            parts = []
            for row, part in enumerate(q.split(rows_a_block, 1)):
                i = torch.arange(row * rows_a_block, row * rows_a_block + part.shape[1], device=q.device)
                inputs = (variant, args, part, k, v, own_sink, head, i, dtype, unit)
                parts.append(
                    checkpoint(_block, *inputs, use_reentrant=False, preserve_rng_state=False)
                    if again
                    else _block(*inputs)
                )
            found.append((torch.cat([o for o, _ in parts], 1), torch.cat([lse for _, lse in parts], 1)))
    batch_and_head = args.extents["B"], args.extents["H"]
    nothing = _sum_of_nothing([args.q, args.k, args.v, sink, *args.params.values()])
    o, lse = (torch.cat(tensors).unflatten(0, batch_and_head) + nothing for tensors in zip(*found, strict=True))
    return o.transpose(1, 2) if variant.layout == "bshd" else o, lse


def _sum_of_nothing(tensors: Sequence[Tensor]) -> Tensor:
    """0, with a gradient of 0 in every real tensor; so one that the result does not depend on has that, not none."""
    return torch.stack([tensor[None][:0].sum() for tensor in tensors if tensor.is_floating_point()]).sum()


def _block(
    variant: Variant,
    args: Arguments,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sink: Tensor,
    head: Tensor,
    i: Tensor,
    dtype: torch.dtype,
    unit: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    """(o, lse) of rows ``i`` of the batches and heads numbered ``head`` = b * H + h."""
    mask, score = trees(variant)
    heads = args.extents["H"]
    names = names_of(variant, args.extents, (head // heads)[:, None, None], (head % heads)[:, None, None], i[:, None])
    allowed = None if mask is None else Evaluator(names, args.params, dtype)(mask)
    if allowed is not None:
        allowed = allowed.expand(q.shape[0], q.shape[1], k.shape[1])

    def logits(allowed: Tensor | None) -> Tensor:
        x = args.scale * scores(q, k, allowed, unit)
        if score is not None:
            x = Evaluator({**names, "s": x}, args.params, dtype)(score, allowed).to(dtype).expand(x.shape)
        return x if allowed is None else torch.where(allowed, x, -torch.inf)

    x = logits(allowed)
    # A row whose scores are all -inf, with no sink beside them, is as one that sees no key, whatever its values hold.
    shut = (x == -torch.inf).all(-1, keepdim=True) & (sink == -torch.inf).all(-1)[:, None, None]
    if bool((shut if allowed is None else shut & allowed.any(-1, keepdim=True)).any()):
        allowed = ~shut.expand(x.shape) if allowed is None else allowed & ~shut
        x = logits(allowed)
    p, lse = _softmax(x, sink)
    if args.dropout is not None:
        p = dropped(p, kept_pairs(args.dropout, head, i, k.shape[1]))
    o = weighted(p, v, allowed, unit)
    if args.dropout is not None:
        # What is no number in a row's scores is so in its result, though all weights are dropped.
        o = o * args.dropout.factor + torch.where(lse.isnan(), torch.nan, 0.0)[..., None]
    if bool(sink.isnan().any()):  # all rows of its head, even those that see no key
        o = o + torch.where(sink.isnan(), torch.nan, 0.0)[..., None]
    return o, lse


def _softmax(x: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities [N, Sq, Skv] and lse [N, Sq] of scores; ``sink`` [N, 1], or [N, 0] for none.

    A row with nothing in it has probabilities 0 and lse -inf, and passes no gradient on. A sink of inf takes all
    weight.
    """
    sink = sink[:, None].expand(-1, x.shape[1], -1)
    with torch.no_grad():
        top = x.new_full((*x.shape[:2], 1), -torch.inf)
        for column in (x, sink):
            if column.shape[2]:
                top = torch.maximum(top, column.amax(-1, keepdim=True))
        top = top.masked_fill(top == -torch.inf, 0)
    weights = torch.exp(x - top)
    whole = sink == torch.inf
    total = weights.sum(-1, keepdim=True) + torch.exp((sink - top).masked_fill(whole, 0)).sum(-1, keepdim=True)
    empty = total == 0
    total = total.masked_fill(empty, 1)
    lse = (top + total.log()).masked_fill(empty, -torch.inf)
    if bool(whole.any()):
        lse = torch.where(whole & ~lse.isnan(), sink, lse)  # whose gradient the sink's is
    return weights / total, lse.squeeze(-1)


def names_of(variant: Variant, extents: Mapping[str, int], b: Tensor, h: Tensor, i: Tensor) -> dict[str, Tensor]:
    """What the names of expressions stand for."""
    q_len, kv_len = extents["Sq"], extents["Skv"]
    j = torch.arange(kv_len, device=i.device)
    return {
        "b": b,
        "h": h,
        "hk": h // max(extents["H"] // max(extents["Hk"], 1), 1),
        "i": i,
        "j": j,
        "q": i + (kv_len - q_len) if variant.align == "bottom_right" else i,
        "kv": j,
        "q_len": torch.tensor(q_len, device=i.device),
        "kv_len": torch.tensor(kv_len, device=i.device),
    }


def trees(variant: Variant) -> tuple[Node | None, Node | None]:
    mask, score = (None if part is None else part.resolved for part in (variant.mask, variant.score))
    return _parsed(mask, variant.params, "mask"), _parsed(score, variant.params, "score")


@lru_cache(maxsize=4096)
def _parsed(text: str | None, params: tuple[Param, ...], expect: str) -> Node | None:
    return None if text is None else parse(text, params={param.name: param for param in params}, expect=expect)
