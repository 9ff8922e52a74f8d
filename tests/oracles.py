"""The attentions of specs/zoo.yaml written out by hand, each from its own definition, never from its expression.

An oracle takes q [B, Sq, H, D], k [B, Skv, Hk, D] and v [B, Skv, Hk, Dv], its params by name and ``sink``, and gives
o [B, Sq, H, Dv] and lse [B, H, Sq]; autograd differentiates it. Queries are the last Sq positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

INF = math.inf


@dataclass(frozen=True)
class Sizes:
    """Of one call."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int

    def __str__(self) -> str:
        return f"B{self.batch}_H{self.heads}of{self.kv_heads}_Sq{self.q_len}_Skv{self.kv_len}"


@dataclass(frozen=True)
class Oracle:
    """``attend(q, k, v, sink=..., **params)``; ``params(sizes, generator)`` draws the params, real ones as float64;
    in ``sizes`` each edge of the mask lies inside."""

    attend: Callable[..., tuple[Tensor, Tensor]]
    sizes: tuple[Sizes, ...]
    params: Callable[[Sizes, Generator], dict[str, Tensor]] = lambda sizes, generator: {}
    sink: bool = False


@dataclass(frozen=True)
class Inputs:
    """Arguments of a call, float64; what a gradient is wanted of requires grad."""

    q: Tensor
    k: Tensor
    v: Tensor
    sink: Tensor | None
    params: dict[str, Tensor]

    def learned(self) -> dict[str, Tensor]:
        """The tensors with gradients, by name."""
        tensors = {"q": self.q, "k": self.k, "v": self.v, **self.params}
        if self.sink is not None:
            tensors["sink"] = self.sink
        return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def draw(name: str, sizes: Sizes, head_dim: int, value_dim: int, seed: int = 0) -> Inputs:
    """Inputs for the oracle ``name``; scores are a few units wide."""
    oracle, generator = ORACLES[name], Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    q = normal(sizes.batch, sizes.q_len, sizes.heads, head_dim)
    k = normal(sizes.batch, sizes.kv_len, sizes.kv_heads, head_dim)
    v = normal(sizes.batch, sizes.kv_len, sizes.kv_heads, value_dim)
    sink = normal(sizes.heads) if oracle.sink else None
    params = oracle.params(sizes, generator)
    for tensor in params.values():
        if tensor.is_floating_point():
            tensor.requires_grad_()
    return Inputs(q, k, v, sink, params)


# Pieces


def repeated(x: Tensor, heads: int) -> Tensor:
    """Keys or values [B, S, Hk, D] for each query head: [B, heads, S, D]."""
    return torch.stack([x[:, :, h * x.shape[2] // heads] for h in range(heads)], 1)


def logits(q: Tensor, k: Tensor, scale: float | None = None) -> Tensor:
    """Scaled scores [B, H, Sq, Skv]."""
    product = torch.einsum("bihd,bhjd->bhij", q, repeated(k, q.shape[2]))
    return product * (q.shape[3] ** -0.5 if scale is None else scale)


def output(scores: Tensor, v: Tensor, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """o and lse of scores [B, H, Sq, Skv], -inf where excluded; ``sink`` [H] is a column that has no value."""
    batch, heads, q_len, kv_len = scores.shape
    if sink is not None:
        scores = torch.cat([scores, sink[None, :, None, None].expand(batch, heads, q_len, 1)], 3)
    empty = (scores == -INF).all(3, keepdim=True)
    scores = torch.where(empty, 0, scores)
    weights = torch.where(empty, 0, torch.softmax(scores, 3))[..., :kv_len]
    lse = torch.where(empty, -INF, torch.logsumexp(scores, 3, keepdim=True))
    return torch.einsum("bhij,bhjd->bihd", weights, repeated(v, heads)), lse.squeeze(3)


def lower_triangle(q_len: int, kv_len: int) -> Tensor:
    """Each query sees itself and what is before it; the last query sees all."""
    return torch.ones(q_len, kv_len).tril(kv_len - q_len).bool()


def band(q_len: int, kv_len: int, width: int) -> Tensor:
    """The last ``width`` keys up to and with the query itself."""
    return lower_triangle(q_len, kv_len) & torch.ones(q_len, kv_len).triu(kv_len - q_len - width + 1).bool()


def masked(scores: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, scores, -INF)


def chosen(q: Tensor, k: Tensor, v: Tensor, keys: Callable[[int, int], list[int]]) -> tuple[Tensor, Tensor]:
    """Each row over just the keys that ``keys(batch, row)`` lists."""
    mask = torch.zeros(q.shape[0], 1, q.shape[1], k.shape[1]).bool()
    for b in range(q.shape[0]):
        for i in range(q.shape[1]):
            mask[b, 0, i, keys(b, i)] = True
    return output(masked(logits(q, k), mask), v)


# The attentions


def causal(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Differential attention's two halves and all plain decoders."""
    return output(masked(logits(q, k), lower_triangle(q.shape[1], k.shape[1])), v)


def mla_prefill(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The score is a content part of 128 and a rotary part of 64, under one scale."""
    content, rotary = logits(q[..., :128], k[..., :128], 1.0), logits(q[..., 128:], k[..., 128:], 1.0)
    return output(masked((content + rotary) / math.sqrt(192), lower_triangle(q.shape[1], k.shape[1])), v)


def mistral(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """A sliding window of 4096 tokens, the query's own counted."""
    return output(masked(logits(q, k), band(q.shape[1], k.shape[1], 4096)), v)


def gemma2_local(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Query scaled by 256^-0.5, logits capped at 50 before the mask, a window of 4096."""
    capped = torch.tanh(logits(q * 256**-0.5, k, 1.0) / 50.0) * 50.0
    return output(masked(capped, band(q.shape[1], k.shape[1], 4096)), v)


def gemma3_local(q: Tensor, k: Tensor, v: Tensor, *, img: Tensor) -> tuple[Tensor, Tensor]:
    """A window of 1024; tokens of one image also see each other. img 0 is text."""
    q_len, kv_len = q.shape[1], k.shape[1]
    mask = band(q_len, kv_len, 1024).repeat(len(img), 1, 1)
    for b, row in enumerate(img):
        for image in set(row.tolist()) - {0}:
            inside = row == image
            mask[b] |= inside[kv_len - q_len :, None] & inside[None, :]
    return output(masked(logits(q, k), mask[:, None]), v)


def gpt_oss(q: Tensor, k: Tensor, v: Tensor, *, sink: Tensor) -> tuple[Tensor, Tensor]:
    """A window of 128 and a learned logit a head that joins the softmax and is then dropped."""
    return output(masked(logits(q, k), band(q.shape[1], k.shape[1], 128)), v, sink)


def t5(q: Tensor, k: Tensor, v: Tensor, *, rel: Tensor) -> tuple[Tensor, Tensor]:
    """Unscaled scores plus a bias by how far the key is behind the query; rel[:, kv_len] is no distance."""
    q_len, kv_len = q.shape[1], k.shape[1]
    rows = []
    for position in range(kv_len - q_len, kv_len):
        distances = torch.arange(position, position - kv_len, -1)  # of keys 0, 1, 2, ...
        rows.append(
            rel[:, kv_len:].index_select(1, distances.clamp(min=0)) * (distances >= 0)
            + rel[:, :kv_len].flip(1).index_select(1, (-distances - 1).clamp(min=0)) * (distances < 0)
        )
    return output(logits(q, k, 1.0) + torch.stack(rows, 1), v)


def bloom(q: Tensor, k: Tensor, v: Tensor, *, slope: Tensor, pos: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """ALiBi as a bias by key: slope times how many true tokens come before it. A query that is padding sees nothing."""
    q_len, kv_len = q.shape[1], k.shape[1]
    true = torch.stack([torch.cat([torch.zeros(int(n)), torch.ones(kv_len - int(n))]) for n in left])
    counted = (true.cumsum(1) - 1) * true
    scores = logits(q, k) + slope[None, :, None, None] * counted[:, None, None, :]
    return output(masked(scores, lower_triangle(q_len, kv_len) & true[:, None, None, :].bool()), v)


def longformer(q: Tensor, k: Tensor, v: Tensor, *, glob: Tensor) -> tuple[Tensor, Tensor]:
    """256 tokens to either side, and global tokens, which see and are seen by all."""
    q_len, kv_len = q.shape[1], k.shape[1]

    def keys(b: int, i: int) -> list[int]:
        at = kv_len - q_len + i
        if glob[b, at]:
            return list(range(kv_len))
        near = set(range(max(0, at - 256), min(kv_len, at + 257)))
        return sorted(near | set(glob[b, :kv_len].nonzero().flatten().tolist()))

    return chosen(q, k, v, keys)


def prefix_lm(q: Tensor, k: Tensor, v: Tensor, *, prefix: Tensor) -> tuple[Tensor, Tensor]:
    """All see the prefix; behind it each token sees what is before it."""
    return chosen(q, k, v, lambda b, i: list(range(max(int(prefix[b]), k.shape[1] - q.shape[1] + i + 1))))


def packed(q: Tensor, k: Tensor, v: Tensor, *, doc: Tensor) -> tuple[Tensor, Tensor]:
    """Each document on its own, causally."""
    q_len, kv_len = q.shape[1], k.shape[1]
    outputs = []
    for b, ids in enumerate(doc[:, :kv_len]):
        parts, order = [], []
        for document in ids.unique().tolist():
            keys = (ids == document).nonzero().flatten()
            rows = keys[keys >= kv_len - q_len] - (kv_len - q_len)
            if len(rows):
                parts.append(causal(q[b : b + 1, rows], k[b : b + 1, keys], v[b : b + 1, keys]))
                order.append(rows)
        back = torch.cat(order).argsort()
        outputs.append(
            (torch.cat([o for o, _ in parts], 1)[:, back], torch.cat([lse for _, lse in parts], 2)[..., back])
        )
    return torch.cat([o for o, _ in outputs]), torch.cat([lse for _, lse in outputs])


def tree(q: Tensor, k: Tensor, v: Tensor, *, tree: Tensor) -> tuple[Tensor, Tensor]:
    """The queries are drafts, the last keys their own: each sees all that is settled and what it follows from."""
    settled = k.shape[1] - q.shape[1]
    return chosen(
        q, k, v, lambda b, i: list(range(settled)) + [settled + d for d in tree[b, i].nonzero().flatten().tolist()]
    )


def ring(q: Tensor, k: Tensor, v: Tensor, *, qpos: Tensor, kpos: Tensor) -> tuple[Tensor, Tensor]:
    """A rank's part of a causal attention: keys in order of position, cut off behind the query's."""
    order = kpos.argsort()
    k, v, kpos = k[:, order], v[:, order], kpos[order]
    scores = logits(q, k)
    cut = torch.searchsorted(kpos, qpos, right=True)
    rows = [
        torch.nn.functional.pad(scores[:, :, i, : int(n)], (0, len(kpos) - int(n)), value=-INF)
        for i, n in enumerate(cut)
    ]
    return output(torch.stack(rows, 2), v)


def cross(q: Tensor, k: Tensor, v: Tensor, *, len: Tensor) -> tuple[Tensor, Tensor]:
    """Each sequence's keys without their padding."""
    parts = [output(logits(q[b : b + 1], k[b : b + 1, : int(n)]), v[b : b + 1, : int(n)]) for b, n in enumerate(len)]
    return torch.cat([o for o, _ in parts]), torch.cat([lse for _, lse in parts])


def natten2d(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """An image 64 wide: each pixel sees the 7 x 7 around it, less at the borders."""
    rows = k.shape[1] // 64
    number = torch.arange(k.shape[1]).reshape(rows, 64)

    def keys(b: int, i: int) -> list[int]:
        row, column = divmod(k.shape[1] - q.shape[1] + i, 64)
        return number[max(0, row - 3) : row + 4, max(0, column - 3) : column + 4].flatten().tolist()

    return chosen(q, k, v, keys)


def fox(q: Tensor, k: Tensor, v: Tensor, *, f: Tensor) -> tuple[Tensor, Tensor]:
    """Each step multiplies what came before it by its forget gate; f is the running sum of the gates' logarithms."""
    q_len, kv_len = q.shape[1], k.shape[1]
    gates = f.diff(dim=2, prepend=torch.zeros_like(f[..., :1]))  # log of each step's own gate
    rows = []
    for position in range(kv_len - q_len, kv_len):
        # What lies between key j and the query: gates j + 1 .. position.
        behind = gates[..., : position + 1].flip(2).cumsum(2).flip(2)[..., 1:]
        rows.append(torch.nn.functional.pad(behind, (0, kv_len - position)))
    decay = torch.stack(rows, 2)
    return output(masked(logits(q, k) + decay, lower_triangle(q_len, kv_len)), v)


def dense_bias(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor) -> tuple[Tensor, Tensor]:
    """A bias for each pair."""
    return output(logits(q, k) + bias, v)


# What each is called with


def _normal(*shape: int, generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _integers(low: int, high: int, *shape: int, generator: Generator) -> Tensor:
    return torch.randint(low, high + 1, shape, generator=generator, dtype=torch.int32)


def _images(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    runs = _integers(0, 2, sizes.batch, sizes.kv_len // 16 + 1, generator=generator)
    return {"img": runs.repeat_interleave(16, 1)[:, : sizes.kv_len].contiguous()}


def _documents(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    starts = torch.rand(sizes.batch, sizes.kv_len, generator=generator) < 4 / sizes.kv_len
    return {"doc": starts.cumsum(1).int()}


def _padded(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    left = _integers(0, sizes.kv_len - 1, sizes.batch, generator=generator)
    left[0] = 0
    pos = (torch.arange(sizes.kv_len) - left[:, None]).clamp(min=0).int()
    return {"slope": _normal(sizes.heads, generator=generator), "left": left, "pos": pos}


def _drafts(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    """Each draft follows from an earlier one; it sees itself and all it follows from."""
    seen = torch.eye(sizes.q_len).bool().repeat(sizes.batch, 1, 1)
    for b in range(sizes.batch):
        for i in range(1, sizes.q_len):
            parent = int(torch.randint(-1, i, (), generator=generator))
            if parent >= 0:
                seen[b, i] |= seen[b, parent]
    return {"tree": seen}


def _zigzag(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    """Rank 1 of 4: pieces 1 and 6 of 8, and the keys of the whole sequence in the order in which ranks pass them on."""
    piece = sizes.kv_len // 8
    pieces = torch.arange(8 * piece).reshape(8, piece)
    order = [n for rank in (1, 0, 3, 2) for n in (rank, 7 - rank)]
    return {"qpos": pieces[[1, 6]].flatten().int(), "kpos": pieces[order].flatten().int()}


def _forget_gates(sizes: Sizes, generator: Generator) -> dict[str, Tensor]:
    gates = torch.nn.functional.logsigmoid(2 + _normal(sizes.batch, sizes.heads, sizes.kv_len, generator=generator))
    return {"f": gates.cumsum(2)}


_SMALL = (Sizes(2, 4, 2, 9, 9), Sizes(1, 3, 1, 5, 12), Sizes(2, 2, 2, 1, 7))
_PAST_4096 = (Sizes(1, 2, 1, 5, 4100), Sizes(1, 1, 1, 2, 4097))

ORACLES: dict[str, Oracle] = {
    "gemma2_local": Oracle(gemma2_local, _PAST_4096),
    "gemma3_local": Oracle(gemma3_local, (Sizes(2, 2, 1, 40, 1050), Sizes(1, 2, 2, 70, 70)), _images),
    "gpt_oss": Oracle(gpt_oss, (Sizes(2, 4, 1, 140, 140), Sizes(1, 2, 2, 3, 131)), sink=True),
    "t5": Oracle(t5, _SMALL, lambda n, generator: {"rel": _normal(n.heads, 2 * n.kv_len, generator=generator)}),
    "bloom": Oracle(bloom, _SMALL, _padded),
    "mistral": Oracle(mistral, _PAST_4096),
    "longformer": Oracle(
        longformer,
        (Sizes(1, 2, 1, 300, 300), Sizes(2, 1, 1, 4, 261)),
        lambda n, generator: {"glob": torch.rand(n.batch, n.kv_len, generator=generator) < 0.02},
    ),
    "prefix_lm": Oracle(
        prefix_lm,
        _SMALL,
        lambda n, generator: {"prefix": _integers(0, n.kv_len, n.batch, generator=generator)},
    ),
    "packed": Oracle(packed, (Sizes(1, 4, 2, 33, 33), Sizes(2, 2, 1, 7, 30)), _documents),
    "tree": Oracle(tree, (Sizes(2, 4, 2, 7, 20), Sizes(1, 1, 1, 6, 6)), _drafts),
    "ring": Oracle(ring, (Sizes(1, 4, 2, 8, 32), Sizes(2, 1, 1, 2, 8)), _zigzag),
    "diff": Oracle(causal, _SMALL),
    "mla_prefill": Oracle(mla_prefill, _SMALL),
    "cross": Oracle(cross, _SMALL, lambda n, generator: {"len": _integers(0, n.kv_len, n.batch, generator=generator)}),
    "natten2d": Oracle(natten2d, (Sizes(1, 1, 1, 576, 576), Sizes(1, 2, 1, 70, 320))),
    "fox": Oracle(fox, _SMALL, _forget_gates),
    "dense_bias": Oracle(
        dense_bias,
        _SMALL,
        lambda n, generator: {"bias": _normal(n.batch, n.heads, n.q_len, n.kv_len, generator=generator)},
    ),
}
