"""What the ops return, without computing it: sizes, strides and dtypes, for torch.compile and torch.export."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .failures import DtypeError
from .shapes import gradient_params, tensor_shape
from .variant import TORCH_DTYPES, Variant

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, of_torch) for name, of_torch in TORCH_DTYPES.items()}


def forward(variant: Variant) -> Callable[..., tuple[Tensor, Tensor]]:
    """Of ``NAME_forward``."""

    def fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, Tensor]:
        _check(variant, q, k, v)
        return q.new_empty((*q.shape[:3], variant.value_dim)), _rows(variant, q)

    return fake


def forward_out(variant: Variant) -> Callable[..., Tensor]:
    """Of ``NAME_forward_out``."""

    def fake(q: Tensor, k: Tensor, v: Tensor, *rest: object) -> Tensor:
        _check(variant, q, k, v)
        return _rows(variant, q)

    return fake


def backward(variant: Variant) -> Callable[..., tuple[Tensor, ...]]:
    """Of ``NAME_backward``."""
    first_param = 7 + variant.sink

    def fake(d_o: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: object) -> tuple[Tensor, ...]:
        args = (d_o, d_lse, q, k, v, *rest)
        needs = args[-1]
        assert isinstance(needs, int)
        results = [q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)]
        wanted: list[tuple[int, object]] = [(needs & 1, args[7])] if variant.sink else []
        for param in gradient_params(variant):
            index = variant.params.index(param)
            wanted.append(((needs >> (1 + index)) & 1, args[first_param + index]))
        for want, like in wanted:
            assert isinstance(like, Tensor)
            results.append(like.new_empty(like.shape if want else (0,), dtype=torch.float32))
        return tuple(results)

    return fake


def tile_counts(variant: Variant) -> Callable[..., Tensor]:
    """Of ``NAME_tile_counts``."""

    def fake(q: Tensor, *rest: object) -> Tensor:
        return q.new_empty((4,), dtype=torch.int64)

    return fake


def _rows(variant: Variant, q: Tensor) -> Tensor:
    batch, first, second = q.shape[:3]
    heads, length = (first, second) if variant.layout == "bhsd" else (second, first)
    return q.new_empty((batch, heads, length), dtype=torch.float32)


def _check(variant: Variant, q: Tensor, k: Tensor, v: Tensor) -> None:
    """What can be told without fixing a length. The op checks the rest when it runs."""
    for name, tensor, dim in (("q", q, variant.head_dim), ("k", k, variant.head_dim), ("v", v, variant.value_dim)):
        if tensor.dtype != DTYPES[variant.dtype]:
            raise DtypeError(f"{variant.name}: {name}: expected dtype {DTYPES[variant.dtype]}, found {tensor.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{variant.name}: {name}: expected device {q.device} as of q, found {tensor.device}")
        if tensor.dim() != 4 or tensor.shape[3] != dim:
            expected = tensor_shape(variant, name)
            raise ValueError(f"{variant.name}: {name}: expected shape {expected}, found {list(tensor.shape)}")
