"""A stand-in for a compiled variant: the kernels' algorithm in plain torch, tile by tile, with faults to order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fagen.runtime.arguments import arguments
from fagen.runtime.dropout import Dropout, kept_pairs
from fagen.runtime.evaluate import Evaluator
from fagen.runtime.fakes import DTYPES
from fagen.runtime.language import parse
from fagen.runtime.products import scores, weighted
from fagen.runtime.reference import names_of, trees
from fagen.runtime.variant import Expression, Param, Variant

TILE = 16  # query rows and keys of a tile

# What the faults are; those after the blank line need a score, a sink, params or a gradient to show.
FAULTS = {
    "no-rescale": "O is not rescaled when a tile brings a new maximum",
    "stale-max": "the weights of a tile are taken against the maximum before it",
    "no-rescale-sum": "the sum of weights is not rescaled on a new maximum",
    "first-tile": "the first tile of keys is skipped",
    "last-tile": "a partial last tile of keys is skipped",
    "tail": "the last key is skipped",
    "mask-late": "the mask admits one key more",
    "mask-early": "the mask admits one key less",
    "no-mask-last-tile": "the last tile of keys is not masked",
    "head": "every head reads the first key head",
    "group": "query head h reads key head h modulo their number",
    "batch": "every sequence reads the keys of the first",
    "align": "positions are aligned the other way",
    "zero-row": "row 3 is zero",
    "nan-row": "row 3 is not written",
    "lost-element": "one element in a thousand is not written",
    "swap-rows": "rows 0 and 1 change places",
    "bf16-accumulation": "O is accumulated in bfloat16",
    "bf16-scores": "scores are rounded to bfloat16",
    "base-2": "lse is in base 2",
    "lse-empty": "an empty row's lse is a finite number",
    "o-empty": "an empty row's o is a mean",
    "scale": "the scale given at the call is ignored",
    "sentinel": "the running maximum starts at -1e4",
    "half-overflow": "scores before scaling are float16",
    "wide-nan": "a NaN in one key reaches every row",
    "lost-nan": "a NaN in V is taken for 0",
    "inf-is-nan": "an infinity in V is taken for NaN",
    "shrunk-values": "values are divided for the sake of large ones, which leaves nothing of the smallest",
    "infinite-mean": "rounding brings a mean of the largest numbers to infinity",
    "strides": "k is read as if it were contiguous",
    "spill": "one element too many is written",
    "writes-input": "q is scaled in place",
    "no-score": "the score change is not applied",
    "no-score-last-tile": "the score change is not applied in the last tile",
    "sink-twice": "the sink is counted in each of two tiles",
    "sink-scaled": "the sink is scaled",
    "no-sink": "the sink is ignored",
    "infinite-sink": "a sink of infinity makes NaN",
    "rows-of-one-batch": "a param's batch index is always 0",
    "no-group-sum": "dk and dv are those of the last query head of a group",
    "no-delta": "the gradient lacks the term from normalising",
    "coarse-lse": "weights are taken against an lse that float32 rounds by more than a weight's unit",
    "no-score-gradient": "the score change's derivative is taken for 1",
    "no-lse-gradient": "the gradient of lse is dropped",
    "dq-unscaled": "dq lacks the scale",
    "dv-unmasked": "dv counts pairs that the mask excludes",
    "bf16-dq": "dq is accumulated in bfloat16 over tiles",
    "no-sink-gradient": "the sink's gradient is zero",
    "param-gradient-one-head": "a param's gradient counts one head",
    "dk-tail": "the last query row gives dk nothing",
    "drops-nothing": "no weight is dropped",
    "drops-unscaled": "what is kept is not divided by 1 - dropout_p",
    "drops-total": "lse and the division count kept weights alone",
    "drops-others": "the weights of the next head are dropped",
    "drops-again": "backward drops other weights than forward",
    "drops-no-gradient": "dv counts dropped weights",
    "dv-unscaled": "dv is not divided by 1 - dropout_p",
}


class Planted:
    """A variant's function, with gradients. ``fault`` is one of FAULTS, or None for an honest kernel."""

    def __init__(self, variant: Variant, fault: str | None = None, tile: int = TILE):
        assert fault is None or fault in FAULTS
        self.variant, self.fault, self.tile = variant, fault, tile

    def has(self, *faults: str) -> bool:
        return self.fault in faults

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        return_lse: bool = False,
        out: Tensor | None = None,
        sink: Tensor | None = None,
        dropout_p: float = 0.0,
        rng_state: Tensor | None = None,
        **params: Tensor,
    ) -> Any:
        self.dropout = Dropout(dropout_p, rng_state) if dropout_p and rng_state is not None else None
        named = tuple(params[param.name] for param in self.variant.params)
        if out is not None:
            with torch.no_grad():
                o, lse = self.forward(q, k, v, scale, sink, params)
            written = ~o.isnan() if self.has("nan-row", "lost-element") else torch.ones_like(o, dtype=torch.bool)
            out[written] = o[written]
            if self.has("spill"):
                torch.as_strided(out, (1,), (1,), out.storage_offset() - 1).fill_(0.0)
            return out, lse
        return _Function.apply(self, scale, q, k, v, sink, *named)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Any, sink: Any, params: Any) -> tuple[Tensor, Tensor]:
        variant, dtype = self.variant, DTYPES[self.variant.dtype]
        if self.has("strides"):
            k = torch.as_strided(k, k.shape, torch.empty(k.shape).stride())
        if self.has("writes-input") and q.numel():
            q.view(-1)[0] *= 2.0
        args, x, allowed, _ = self.scores(q, k, v, scale, sink, params)
        rows, keys = x.shape[-2:]
        start = -1e4 if self.has("sentinel") else -math.inf
        top = torch.full((*x.shape[:-1], 1), start)
        # Values whose sum may overflow before it is divided are added in float64.
        large = bool((args.v.abs() > 2.0**95).any())
        shrink = 2.0**-32 if large and self.has("shrunk-values") else 1.0
        wide = torch.float64 if large else torch.float32
        total, o = torch.zeros_like(top), torch.zeros(*x.shape[:-1], variant.value_dim, dtype=wide)
        tiles = list(range(0, keys, self.tile))
        if self.has("first-tile"):
            tiles = tiles[1:]
        if self.has("last-tile") and keys % self.tile:
            tiles = tiles[:-1]
        for tile in tiles:
            part = slice(tile, min(tile + self.tile, keys))
            new = torch.maximum(top, x[..., part].amax(-1, keepdim=True))
            safe = torch.where(new == -math.inf, 0.0, new)
            against = torch.where(top == -math.inf, safe, top) if self.has("stale-max") else safe
            p = torch.exp(x[..., part] - against)
            alpha = torch.exp(torch.where(new == -math.inf, 0.0, top - safe))
            kept = self.kept(args)[..., part]
            used = torch.where(kept > 0, p, 0.0)
            summed = used if self.has("drops-total") else p
            total = total * (1.0 if self.has("no-rescale-sum") else alpha) + summed.sum(-1, keepdim=True)
            p = used
            o = o * (1.0 if self.has("no-rescale") else alpha)
            p = p.to(dtype).to(wide)
            values = (args.v[:, part] * shrink).to(wide)
            if self.has("lost-nan"):
                values = values.nan_to_num(0.0)
            if self.has("inf-is-nan"):
                values = values.masked_fill(values.isinf(), math.nan)
            o = o + (p @ values if self.has("wide-nan") else weighted(p, values, allowed[..., part]))
            if self.has("bf16-accumulation"):
                o = o.bfloat16().to(wide)
            top = new
        if args.sink is not None and not self.has("no-sink"):
            extra = args.sink[:, None] * (args.scale if self.has("sink-scaled") else 1.0)
            new = torch.maximum(top, extra)
            safe = torch.where(new == -math.inf, 0.0, new)
            alpha = torch.exp(torch.where(new == -math.inf, 0.0, top - safe))
            weight = torch.exp(extra - safe)
            weight = weight if self.has("infinite-sink") else weight.masked_fill(extra == math.inf, 1.0)
            total = total * alpha + weight * (2.0 if self.has("sink-twice") and keys > self.tile else 1.0)
            o, top = o * alpha, new
        o = o * (1.0 if self.has("drops-unscaled") else self.factor())
        empty = total == 0
        o = torch.where(
            empty, args.v.mean(1, keepdim=True) if self.has("o-empty") and keys else 0.0, o / (total * shrink)
        )
        lse = torch.where(empty, -1e30 if self.has("lse-empty") else -math.inf, top + total.log())
        lse = lse / math.log(2.0) if self.has("base-2") else lse
        if not self.has("infinite-mean"):
            most = torch.finfo(dtype).max
            o = torch.where(o.isfinite(), o.clamp(-most, most), o)
        o, lse = o.to(dtype), lse[..., 0]
        if rows > 3 and self.has("zero-row", "nan-row"):
            o[:, 3] = 0.0 if self.has("zero-row") else math.nan
        if self.has("lost-element"):
            o.view(-1)[7::1000] = math.nan
        if rows > 1 and self.has("swap-rows"):
            o = o[:, [1, 0, *range(2, rows)]]
        return self.laid_out(args, o), lse.reshape(args.extents["B"], args.extents["H"], rows)

    def factor(self) -> float:
        """Of kept weights."""
        return 1.0 if self.dropout is None else self.dropout.factor

    def kept(self, args: Any, other: bool = False) -> Tensor:
        """1 for a pair that is kept, 0 for one that is not: [B * H, Sq, Skv]. ``other`` asks for other pairs."""
        heads, rows, keys = args.q.shape[0], args.q.shape[1], args.k.shape[1]
        if self.dropout is None or self.has("drops-nothing"):
            return torch.ones(heads, rows, keys)
        dropout = replace(self.dropout, rng_state=self.dropout.rng_state + 1) if other else self.dropout
        head = torch.arange(heads) + self.has("drops-others")
        return kept_pairs(dropout, head, torch.arange(rows), keys).float()

    def laid_out(self, args: Any, tensor: Tensor) -> Tensor:
        tensor = tensor.reshape(args.extents["B"], args.extents["H"], *tensor.shape[1:])
        return (tensor.transpose(1, 2) if self.variant.layout == "bshd" else tensor).contiguous()

    def scores(self, q: Tensor, k: Tensor, v: Tensor, scale: Any, sink: Any, params: Any) -> tuple[Any, ...]:
        variant = self.variant
        if self.has("scale"):
            scale = None
        if self.has("rows-of-one-batch"):
            params = {
                name: tensor[:1].expand(tensor.shape) if tensor.dim() else tensor for name, tensor in params.items()
            }
        args = arguments(variant, q, k, v, scale, sink, params, torch.float32, None)
        group = args.extents["H"] // args.extents["Hk"]
        if group > 1 and self.has("head", "group"):

            def reread(tensor: Tensor) -> Tensor:
                heads = tensor.unflatten(0, (-1, args.extents["H"]))[:, ::group]
                chosen = [0 if self.has("head") else h % heads.shape[1] for h in range(args.extents["H"])]
                return heads[:, chosen].flatten(0, 1)

            args = replace(args, k=reread(args.k), v=reread(args.v))
        if self.has("batch"):
            first = slice(0, args.extents["H"])
            repeat = (args.extents["B"], 1, 1)
            args = replace(args, k=args.k[first].repeat(repeat), v=args.v[first].repeat(repeat))
        if self.has("align"):
            variant = replace(variant, align="top_left" if variant.align == "bottom_right" else "bottom_right")
        mask, score = trees(variant)
        number = torch.arange(args.q.shape[0])
        i = torch.arange(args.q.shape[1])
        heads = args.extents["H"]
        names = names_of(
            variant, args.extents, (number // heads)[:, None, None], (number % heads)[:, None, None], i[:, None]
        )
        shape = (args.q.shape[0], args.q.shape[1], args.k.shape[1])
        keys = shape[-1]
        allowed = torch.ones(shape, dtype=torch.bool)
        if mask is not None:
            allowed = Evaluator(names, args.params, torch.float32)(mask).expand(shape).clone()
            if keys > 1 and self.has("mask-late", "mask-early"):
                moved = torch.cat([allowed[..., :1], allowed[..., :-1]], -1)
                allowed = allowed | moved if self.has("mask-late") else allowed & torch.roll(moved, -2, -1)
            if self.has("no-mask-last-tile") and keys:
                allowed[..., (keys - 1) // self.tile * self.tile :] = True
        if self.has("tail"):
            allowed[..., -1:] = False
        raw = scores(args.q, args.k, allowed)
        if self.has("half-overflow"):
            raw = raw.half().float()
        s = (args.scale * raw).detach().requires_grad_()
        leaves = {name: t.detach().requires_grad_() if t.is_floating_point() else t for name, t in args.params.items()}
        x = s
        if score is not None and not self.has("no-score"):
            with torch.enable_grad():
                x = Evaluator({**names, "s": s}, leaves, torch.float32)(score, allowed).float().expand(shape)
                if self.has("no-score-last-tile") and keys:
                    last = torch.arange(keys) >= (keys - 1) // self.tile * self.tile
                    x = torch.where(last, s, x)
        final = x.detach().bfloat16().float() if self.has("bf16-scores") else x.detach()
        final = torch.where(allowed, final, -math.inf)
        if args.sink is None:  # a row that all are shut out of sees none
            allowed = allowed & ~(final == -math.inf).all(-1, keepdim=True)
        return args, final, allowed, (s, x, leaves)

    def backward(
        self,
        d_o: Tensor,
        d_lse: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        scale: Any,
        sink: Any,
        params: Any,
    ) -> dict[str, Tensor]:
        variant, dtype = self.variant, DTYPES[self.variant.dtype]
        q, k, v, o, lse = (tensor.detach() for tensor in (q, k, v, o, lse))
        sink = None if sink is None else sink.detach()
        args, x, allowed, (s, graph, leaves) = self.scores(q, k, v, scale, sink, params)
        lse = lse.reshape(x.shape[0], x.shape[1], 1)
        by_head = (
            (lambda t: t.transpose(1, 2).flatten(0, 1)) if variant.layout == "bshd" else (lambda t: t.flatten(0, 1))
        )
        d_o, o = by_head(d_o).float(), by_head(o).float()
        safe = torch.where(lse == -math.inf, 0.0, lse)
        p = torch.exp(x - safe)
        weight = 0.0
        if args.sink is not None:
            weight = torch.exp(args.sink[:, None] - safe).masked_fill(args.sink[:, None] == safe, 1.0)
        total = p.sum(-1, keepdim=True) + weight
        # Where a float32 lse says too little, weights are made to add up to 1.
        total = torch.where(safe.abs() >= (math.inf if self.has("coarse-lse") else 2.0**10), total, 1.0)
        p, weight = p / total, weight / total
        kept = self.kept(args, self.has("drops-again"))
        d_p = torch.where(allowed, d_o @ args.v.mT, 0.0) * kept * self.factor()
        delta = 0.0 if self.has("no-delta") else (d_o * o).sum(-1, keepdim=True)
        if d_lse is not None and not self.has("no-lse-gradient"):
            delta = delta - d_lse.reshape(x.shape[0], x.shape[1], 1)
        d_x = torch.where(allowed, p * (d_p - delta), 0.0)
        d_s = d_x
        if graph is not s and graph.requires_grad:
            (slope,) = torch.autograd.grad(graph.sum(), s, retain_graph=True, allow_unused=True)
            slope = torch.zeros_like(s) if slope is None else slope
            d_s = d_x if self.has("no-score-gradient") else d_x * slope
        d_s = torch.where(allowed, d_s, 0.0).to(dtype).float()
        d_q = weighted(d_s, args.k, allowed) * (1.0 if self.has("dq-unscaled") else args.scale)
        if self.has("bf16-dq"):
            d_q = torch.zeros_like(args.q)
            for tile in range(0, x.shape[-1], self.tile):
                part = slice(tile, tile + self.tile)
                d_q = (
                    (d_q + args.scale * weighted(d_s[..., part], args.k[:, part], allowed[..., part]))
                    .bfloat16()
                    .float()
                )
        rows = d_s[:, :-1] if self.has("dk-tail") else d_s
        d_k = weighted(rows.mT, args.q[:, : rows.shape[1]], allowed[:, : rows.shape[1]].mT) * args.scale
        used = p if self.has("drops-no-gradient") else torch.where(kept > 0, p, 0.0)
        d_v = weighted(used.to(dtype).float().mT, d_o, allowed.mT) * (1.0 if self.has("dv-unscaled") else self.factor())
        if self.has("dv-unmasked"):
            d_v = torch.exp(torch.where(allowed, x, s.detach()) - safe).mT @ d_o
        found = {"q": self.laid_out(args, d_q).to(dtype)}
        for name, tensor in (("k", d_k), ("v", d_v)):
            group = args.extents["H"] // args.extents["Hk"]
            grouped = tensor.reshape(args.extents["B"], args.extents["Hk"], group, *tensor.shape[1:])
            summed = grouped[:, :, -1] if self.has("no-group-sum") else grouped.sum(2)
            summed = summed.transpose(1, 2) if variant.layout == "bshd" else summed
            found[name] = summed.contiguous().to(dtype)
        if args.sink is not None:
            d_sink = -(weight * delta).reshape(args.extents["B"], args.extents["H"], x.shape[1]).sum((0, 2))
            found["sink"] = torch.zeros_like(d_sink) if self.has("no-sink-gradient") else d_sink
        for param in variant.params:
            if param.grad:
                d_x_here = d_x.clone()
                if self.has("param-gradient-one-head"):
                    d_x_here.unflatten(0, (-1, args.extents["H"]))[:, 1:] = 0.0
                gradient = None
                if graph.requires_grad and graph is not s:
                    (gradient,) = torch.autograd.grad(
                        graph, leaves[param.name], d_x_here, retain_graph=True, allow_unused=True
                    )
                gradient = torch.zeros_like(leaves[param.name]) if gradient is None else gradient
                found[param.name] = gradient.to(DTYPES[param.dtype])
        return found


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, planted: Planted, scale: Any, q: Any, k: Any, v: Any, sink: Any, *params: Any) -> Any:
        named = dict(zip((param.name for param in planted.variant.params), params, strict=True))
        o, lse = planted.forward(q, k, v, scale, sink, named)
        ctx.planted, ctx.scale = planted, scale
        ctx.save_for_backward(q, k, v, o, lse, sink, *params)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @torch.enable_grad()
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> Any:
        q, k, v, o, lse, sink, *params = ctx.saved_tensors
        planted = ctx.planted
        named = dict(zip((param.name for param in planted.variant.params), params, strict=True))
        found = planted.backward(d_o, d_lse, q, k, v, o, lse, ctx.scale, sink, named)
        rest = [found.get(name) for name in named]
        return (None, None, found["q"], found["k"], found["v"], found.get("sink"), *rest)


def variant(
    name: str = "planted",
    *,
    head_dim: int = 16,
    value_dim: int | None = None,
    mask: str | None = None,
    score: str | None = None,
    params: tuple[Param, ...] = (),
    **settings: Any,
) -> Variant:
    """A variant written in a line; ``mask`` and ``score`` are texts of the language."""

    def expression(text: str | None, expect: str) -> Expression | None:
        if text is None:
            return None
        from fagen.runtime.language import unparse

        return Expression(text, unparse(parse(text, params={param.name: param for param in params}, expect=expect)))

    return Variant(
        name,
        head_dim,
        value_dim or head_dim,
        mask=expression(mask, "mask"),
        score=expression(score, "score"),
        params=params,
        **settings,
    )
