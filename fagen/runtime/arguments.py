"""The arguments of a formula in plain torch: checked, and brought into one layout and dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .dropout import Dropout
from .shapes import shape_of, tensor_shape
from .variant import Param, Variant


@dataclass(frozen=True)
class Arguments:
    """q, k, v as [B * H, S, D], keys and values repeated for the query heads that share them; sink as [B * H, 1]."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    sink: Tensor | None
    params: dict[str, Tensor]
    extents: dict[str, int]
    dropout: Dropout | None = None


def arguments(
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    sink: Tensor | None,
    params: Mapping[str, Tensor],
    dtype: torch.dtype,
    unit: torch.dtype | None,
    dropout: Dropout | None = None,
) -> Arguments:
    """ValueError or TypeError for what does not fit the variant or each other.

    Real tensors become ``dtype``, q, k and v by way of ``unit`` if given; integers become int64.
    """
    extents = _extents(variant, q, k, v)
    if variant.sink != (sink is not None):
        raise ValueError(f"{variant.name}: sink: " + ("missing" if variant.sink else "this variant has none"))
    if sink is not None and tuple(sink.shape) != (extents["H"],):
        raise ValueError(f"{variant.name}: sink: expected shape [{extents['H']}], found {list(sink.shape)}")
    group = extents["H"] // extents["Hk"] if extents["Hk"] else 1

    def by_head(x: Tensor, repeats: int) -> Tensor:
        x = (x if unit is None else x.to(unit)).to(dtype)
        x = x.transpose(1, 2) if variant.layout == "bshd" else x
        return x.repeat_interleave(repeats, 1).flatten(0, 1) if repeats > 1 else x.flatten(0, 1)

    if scale is None:
        scale = variant.scale if variant.scale is not None else 1 / math.sqrt(variant.head_dim)
    return Arguments(
        q=by_head(q, 1),
        k=by_head(k, group),
        v=by_head(v, group),
        scale=float(scale),
        sink=None if sink is None else sink.to(dtype).repeat(extents["B"])[:, None],
        params=run_time_inputs(variant, params, extents, dtype),
        extents=extents,
        dropout=dropout,
    )


def _extents(variant: Variant, q: Tensor, k: Tensor, v: Tensor) -> dict[str, int]:
    sequence, heads = (1, 2) if variant.layout == "bshd" else (2, 1)
    for name, tensor, dim in (("q", q, variant.head_dim), ("k", k, variant.head_dim), ("v", v, variant.value_dim)):
        if tensor.ndim != 4 or tensor.shape[3] != dim:
            expected = tensor_shape(variant, name)
            raise ValueError(f"{variant.name}: {name}: expected shape {expected}, found {list(tensor.shape)}")
        if not tensor.is_floating_point():
            raise TypeError(f"{variant.name}: {name}: expected real numbers, found {tensor.dtype}")
    b, sq, h = q.shape[0], q.shape[sequence], q.shape[heads]
    skv, hk = k.shape[sequence], k.shape[heads]
    if k.shape[0] != b or v.shape[:3] != k.shape[:3]:
        found = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in (("q", q), ("k", k), ("v", v)))
        raise ValueError(f"{variant.name}: q, k and v do not fit together: found {found}")
    if (h % hk if hk else h) != 0:
        raise ValueError(f"{variant.name}: expected H a multiple of Hk, found {h} query heads and {hk} key heads")
    return {"B": b, "H": h, "Hk": hk, "Sq": sq, "Skv": skv}


def run_time_inputs(
    variant: Variant, params: Mapping[str, Tensor], extents: Mapping[str, int], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The params a variant reads, in the dtypes expressions are evaluated in."""
    declared = {param.name: param for param in variant.params}
    for name in params:
        if name not in declared:
            raise ValueError(f"{variant.name}: {name}: this variant reads no such param")
    return {name: _input(variant, param, params, extents, dtype) for name, param in declared.items()}


def _input(
    variant: Variant, param: Param, params: Mapping[str, Tensor], extents: Mapping[str, int], dtype: torch.dtype
) -> Tensor:
    tensor = params.get(param.name)
    where = f"{variant.name}: {param.name}: expected"
    if tensor is None:
        raise ValueError(f"{where} a param of shape {shape_of(param)}, found none")
    any_length = {size for size, extent in zip(tensor.shape, param.shape, strict=False) if extent == "n"}
    fits = (
        tensor.ndim == len(param.shape)
        and len(any_length) <= 1
        and all(
            extent == "n" or size == (extents[extent] if isinstance(extent, str) else extent)
            for size, extent in zip(tensor.shape, param.shape, strict=True)
        )
    )
    if not fits:
        sizes = ", ".join(f"{name} {size}" for name, size in extents.items() if name in param.shape)
        known = f" with {sizes}" if sizes else ""
        raise ValueError(f"{where} shape {shape_of(param)}{known}, found {list(tensor.shape)}")
    if param.dtype == "bool":
        if tensor.dtype != torch.bool:
            raise TypeError(f"{where} truth values, found {tensor.dtype}")
        return tensor
    if tensor.dtype == torch.bool or tensor.is_complex():
        raise TypeError(f"{where} numbers, found {tensor.dtype}")
    if param.dtype in ("i32", "i64"):
        if tensor.is_floating_point():
            raise TypeError(f"{where} integers, found {tensor.dtype}")
        return tensor.long()
    return tensor.to(dtype)
