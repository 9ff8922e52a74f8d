"""The tensors of a case, drawn from a seed and laid out in memory as the case says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..fakes import DTYPES
from ..language.nodes import Node
from ..reference import mask_matrix
from ..variant import Variant
from .cases import LARGE, RISE, Case
from .memory import Guarded, place
from .params import draw_params


@dataclass(frozen=True)
class Inputs:
    """One call's arguments. q, k, v and d_o are in the variant's layout; d_lse is [B, H, Sq], None where lse gets no
    gradient; ``guarded`` holds the memory of every tensor, by argument name."""

    q: Tensor
    k: Tensor
    v: Tensor
    d_o: Tensor
    d_lse: Tensor | None
    sink: Tensor | None
    params: dict[str, Tensor]
    scale: float | None
    guarded: dict[str, Guarded]
    dropout_p: float = 0.0
    rng_state: Tensor | None = None

    def on(self, device: str) -> Inputs:
        """The same on a device."""
        if device == str(self.q.device):
            return self
        guarded = {name: entry.on(device) for name, entry in self.guarded.items()}

        def moved(name: str, tensor: Tensor) -> Tensor:
            return guarded[name].tensor if name in guarded else tensor.to(device)

        return Inputs(
            **{name: moved(name, getattr(self, name)) for name in ("q", "k", "v", "d_o")},
            d_lse=None if self.d_lse is None else moved("d_lse", self.d_lse),
            sink=None if self.sink is None else moved("sink", self.sink),
            params={name: moved(name, tensor) for name, tensor in self.params.items()},
            scale=self.scale,
            guarded=guarded,
            dropout_p=self.dropout_p,
            rng_state=None if self.rng_state is None else moved("rng_state", self.rng_state),
        )

    def extras(self) -> dict[str, Tensor]:
        """The sink, if there is one, and the params: what a variant's function takes besides q, k, v and scale."""
        return {**({} if self.sink is None else {"sink": self.sink}), **self.params}

    def dropout(self) -> dict[str, Any]:
        """What a variant with dropout takes besides; nothing for others."""
        return {} if self.rng_state is None else {"dropout_p": self.dropout_p, "rng_state": self.rng_state}


def generator(seed: int, name: str) -> torch.Generator:
    """A random source of a case's own, so that it can be repeated alone."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def draw(variant: Variant, trees: Sequence[Node], case: Case, seed: int) -> Inputs:
    """The inputs of ``case``; ``trees`` are the variant's parsed expressions."""
    source = generator(seed, case.name)
    params = draw_params(variant, trees, case, source)
    q, k, v = _values(variant, case, params, source)
    sink = _sink(case, source) if variant.sink else None
    d_o = torch.randn(case.batch, case.q_len, case.heads, variant.value_dim, generator=source)
    d_lse = torch.randn(case.batch, case.heads, case.q_len, generator=source) if case.lse_gradient else None
    if case.values == "huge":
        numbers, quarter = torch.finfo(DTYPES[variant.dtype]), case.kv_len // 4
        small = v * numbers.tiny * 64.0
        v = v.sign() * (0.5 + 0.25 * torch.rand(v.shape, generator=source)) * numbers.max
        v[:, case.kv_len - quarter :] = small[:, case.kv_len - quarter :]
        if case.q_len == case.kv_len:
            v[:, :quarter] = small[:, :quarter]
        d_o = d_o / numbers.max**0.75
    if case.values == "largest":
        numbers = torch.finfo(DTYPES[variant.dtype])
        column, head = torch.arange(variant.value_dim), torch.arange(v.shape[2])[:, None]
        most = (1.0 - 2.0 * (column // 2 % 2)) * numbers.max
        v = torch.where(column % 2 == head % 2, most, 1.0).expand(v.shape)
        d_o = d_o / numbers.max**0.75
    if case.values == "swell":
        numbers, quarter = torch.finfo(DTYPES[variant.dtype]), case.kv_len // 4
        v = (0.5 + 0.25 * torch.rand(v.shape, generator=source)) * numbers.max
        v[:, case.kv_len - quarter :] = numbers.tiny * 64.0
        d_o = (
            d_o / numbers.max**0.5
        )  # not less: keys far away weigh little, and their gradients are to be normal numbers
    if case.values == "drift" and d_lse is not None:
        # The gradient of lse alone makes dq and dk drift; that of o, rounded, would hide it.
        d_o, d_lse = d_o / 64.0, 1.0 + d_lse / 4.0
    if case.poison:
        _poison(variant, case, params, {"query": q, "key": k, "value": v, "upstream": d_o}, source)
    if case.where == "broadcast":
        # One key head for all, one query for all batches, and one number for the gradient, as o.sum() has.
        k, v = (tensor[:, :, :1].expand(tensor.shape) for tensor in (k, v))
        q, d_o = q[:1].expand(q.shape), d_o.flatten()[:1].sum().expand(d_o.shape)
    dtype = DTYPES[variant.dtype]
    guarded = {
        name: place(_laid_out(variant, tensor).to(dtype), _where(case, name))
        for name, tensor in (("q", q), ("k", k), ("v", v), ("d_o", d_o))
    }
    others = {**params, **({} if sink is None else {"sink": sink}), **({} if d_lse is None else {"d_lse": d_lse})}
    if variant.dropout:
        # From a source of its own: the other tensors are those of the variant without dropout.
        state = generator(seed, f"{case.name}/dropout")
        others["rng_state"] = torch.randint(-(2**63), 2**63 - 1, (2,), generator=state)
    guarded |= {name: place(tensor, case.where) for name, tensor in others.items()}
    tensors = {name: entry.tensor for name, entry in guarded.items()}
    return Inputs(
        **{name: tensors[name] for name in ("q", "k", "v", "d_o")},
        d_lse=tensors.get("d_lse"),
        sink=tensors.get("sink") if variant.sink else None,
        params={name: tensors[name] for name in params},
        scale=_scale(variant, case),
        guarded=guarded,
        dropout_p=_dropout_p(case) if variant.dropout else 0.0,
        rng_state=tensors.get("rng_state") if variant.dropout else None,
    )


_POISONED = {"query": "q", "key": "k", "value": "v", "upstream": "d_o"}


def _where(case: Case, name: str) -> str:
    """How one of q, k, v and d_o lies: with gaps only the one that is poisoned, where one is."""
    if case.poison and case.where == "gaps" and _POISONED.get(case.poison.partition("-")[2]) != name:
        return "plain"
    return case.where


def _laid_out(variant: Variant, tensor: Tensor) -> Tensor:
    """[B, S, H, D] in the variant's layout."""
    return tensor.transpose(1, 2) if variant.layout == "bhsd" else tensor


def _values(
    variant: Variant, case: Case, params: dict[str, Tensor], source: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v as float32 [B, S, heads, dim]."""
    dim = variant.head_dim
    q = torch.randn(case.batch, case.q_len, case.heads, dim, generator=source)
    k = torch.randn(case.batch, case.kv_len, case.kv_heads, dim, generator=source)
    v = torch.randn(case.batch, case.kv_len, case.kv_heads, variant.value_dim, generator=source)
    if case.values == "uniform":
        q, k = torch.zeros_like(q), torch.zeros_like(k)
    elif case.values == "spread":
        exponents = torch.randint(-6, 7, (case.batch, case.q_len, case.heads, 1), generator=source)
        q = q * 2.0**exponents
    elif case.values == "large":
        # A row's scores are -LARGE, 0 or LARGE, and a few halves. Every product and sum is a whole number below 2^24.
        share = min((12.0 / dim) ** 0.5, 1.0)
        q, k = (tensor.sign() * (torch.rand(tensor.shape, generator=source) < share) for tensor in (q, k))
        signs = torch.randint(-1, 2, (case.batch, case.q_len, case.heads, 1), generator=source)
        # One row alone in a head, the first or the last, has large scores too.
        signs[:, :1, 1::4], signs[:, 1:, 1::4] = 1, 0
        signs[:, -1:, 3::4], signs[:, :-1, 3::4] = -1, 0
        q[..., :2], k[..., :2] = 512.0 * signs, LARGE / 512.0
    elif case.values == "rising":
        # Scores of RISE and a few halves: of the last keys for the first eight rows, of the others for the next eight.
        late = torch.arange(case.kv_len)[:, None] >= case.kv_len * 2 // 3
        first = (torch.arange(case.q_len) // 8 % 2 == 0)[:, None]
        side = RISE**0.5 * 2.0**0.5
        q[..., 0], q[..., 1] = side * first, side * ~first
        k[..., 0], k[..., 1] = side * late, side * ~late
        q[..., 2:] /= variant.head_dim**0.5
    elif case.values == "largest":
        # One key of eight weighs 1, before all are divided, and the others a little more than a half and half a unit.
        dtype = DTYPES[variant.dtype]
        units, rest = torch.rand(2, case.batch, case.q_len, case.heads, generator=source, dtype=torch.float64)
        gap = -torch.log(0.5 + torch.finfo(dtype).eps / 2.0 * ((4.0 * units).floor() + 0.5 + rest / 10.0))
        q, k = torch.zeros_like(q), torch.zeros_like(k)
        q[..., 0] = gap.to(dtype)
        q[..., 1] = gap - q[..., 0]
        k[..., :2] = (torch.arange(case.kv_len) % 8 == 0)[:, None, None]
    elif case.values == "swell":
        scale = variant.scale if variant.scale is not None else variant.head_dim**-0.5
        q, k = q / 8.0, k / 8.0
        late = torch.arange(case.kv_len)[:, None] >= case.kv_len - case.kv_len // 4
        q[..., 0], k[..., 0] = 4.0, 5.0 / (4.0 * scale) * ~late
    elif case.values == "drift":
        q, k, v = (1.0 + tensor / 4.0 for tensor in (q, k, v))
    elif case.values == "peaked" and k.numel() and q.numel():
        q = _peaked(variant, case, params, k, source)
    return q, k, v


def _sink(case: Case, source: torch.Generator) -> Tensor:
    """[H]. Where scores are large, it is as large, so that it weighs something in some rows."""
    sink = torch.randn(case.heads, generator=source)
    if case.values == "shut" or case.kv_len == 0:  # beside no keys one of -inf leaves nothing at all
        sink[:1], sink[3:4] = -torch.inf, torch.inf
    if case.values != "large":
        return sink
    signs = 1.0 - 2.0 * (torch.arange(case.heads) % 2)
    return LARGE * signs + (2.0 + sink).round()


def _peaked(variant: Variant, case: Case, params: dict[str, Tensor], k: Tensor, source: torch.Generator) -> Tensor:
    """Queries that each point at one key next to an edge of their row of the mask, inside or outside."""
    mask = _mask(variant, case, params)
    shown = torch.nn.functional.pad(mask, (1, 1)).int()
    edge = (shown[..., 1:-1] != shown[..., 2:]) | (shown[..., 1:-1] != shown[..., :-2])
    # Rows without an edge point anywhere.
    weights = edge.double() + 1e-6
    target = torch.multinomial(weights.flatten(0, 2), 1, generator=source).view(mask.shape[:3])
    group = case.heads // case.kv_heads
    keys = k.repeat_interleave(group, 2).transpose(1, 2)  # [B, H, Skv, D]
    chosen = keys.gather(2, target[..., None].expand(*target.shape, k.shape[-1]))
    # About 12 above the others, whatever the scale: exp(-12) is still visible to the rule.
    scale = variant.scale if variant.scale is not None else variant.head_dim**-0.5
    return (chosen * (12.0 / (scale * variant.head_dim))).transpose(1, 2)


def _scale(variant: Variant, case: Case) -> float | None:
    if case.values in ("large", "rising"):
        return 0.5
    if case.values == "largest":
        return 1.0
    return None if case.scale is None else case.scale * variant.head_dim**-0.5


def _dropout_p(case: Case) -> float:
    """Nothing is dropped where values are so large that a share of them, made up for, is no number of the dtype."""
    return 0.0 if case.values in ("huge", "largest", "swell") else case.dropout


def _mask(variant: Variant, case: Case, params: dict[str, Tensor]) -> Tensor:
    """[B, H, Sq, Skv]."""
    shape = case.batch, case.heads, case.q_len, case.kv_len
    return mask_matrix(variant, *shape, params, case.kv_heads).expand(shape)


def _poison(
    variant: Variant, case: Case, params: dict[str, Tensor], tensors: dict[str, Tensor], source: torch.Generator
) -> None:
    """``tensors``, all [B, S, heads, dim], are q, k, v and d_o by the names that cases.POISONS has for them."""
    if case.poison == "unseen":
        seen = _mask(variant, case, params).any(2).unflatten(1, (case.kv_heads, -1)).any(2)
        unseen = ~seen.transpose(1, 2)  # [B, Skv, Hk]
        tensors["key"][unseen], tensors["value"][unseen] = torch.nan, torch.nan
        return
    what, _, name = case.poison.partition("-")
    _, length, heads, _ = tensors[name if name in tensors else "key"].shape
    # Late rows, which under a causal mask few queries see; beside the end of a tile, where the length is one and three.
    bad, row = (torch.nan, length - 4) if what == "nan" else (torch.inf, length - 5)
    row = 0 if case.early else max(row, 0)
    head = int(torch.randint(heads, (), generator=source))
    if case.poison == "inf-upstream":
        # Or the gradient of a score, the sum of Inf in both signs, would be whatever the order makes it.
        tensors["value"][..., 0] = 0.0
    if name == "row":
        # One alone: beside another with a score of Inf, a capped score of -Inf would weigh less than float32 can say.
        row = 0 if case.early else max(length - 4, 0)  # of what a lane has, an even or an odd one
        tensors["key"][:, row, head, 0], tensors["value"][:, row, head, 0] = bad, bad
        return
    # A tile that ends between the two has nothing but the one to tell that it holds any.
    # Elements that are copied together, eight or so, may be looked at one after the other: each way some are elsewhere.
    one, other = (4, 2) if case.early else (-1, 0) if what == "nan" else (0, 0)
    tensors[name][:, row, head, one] = bad
    tensors[name][:, row + 1 : row + 2, head, other] = bad
