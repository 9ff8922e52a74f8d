"""What a call is measured on: normal numbers, and params as they are in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..costs import ProblemSize
from ..runtime.check.cases import Case
from ..runtime.check.inputs import generator
from ..runtime.check.params import draw_params, usage
from ..runtime.fakes import DTYPES
from ..runtime.language import Node
from ..runtime.language.nodes import Compare, Read, walk
from ..runtime.reference import trees
from ..runtime.variant import Param, Variant

DOCUMENTS = 8  # of a sequence
DROPOUT_P = 0.1  # of variants with dropout, and of their peers: as models are trained with
_TILE = 64  # rows or keys of a tile, or a fraction of one: where documents begin is no multiple of it


@dataclass(frozen=True)
class Inputs:
    """q, k and v in the variant's layout; ``extras`` are the params, and the sink, the probability and the state of
    dropout, if there are such."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    params: dict[str, torch.Tensor]
    extras: dict[str, Any]


def draw(variant: Variant, size: ProblemSize, seed: int, device: str) -> Inputs:
    """Tensors of a call, made on ``device``; the params as :func:`fill_params` has them."""
    params = {name: tensor.to(device) for name, tensor in fill_params(variant, size, seed).items()}
    source = torch.Generator(device).manual_seed(seed)

    def normal(heads: int, length: int, dim: int) -> torch.Tensor:
        lengths = (length, heads) if variant.layout == "bshd" else (heads, length)
        return torch.randn(size.batch, *lengths, dim, generator=source, device=device).to(DTYPES[variant.dtype])

    sink = {"sink": torch.randn(size.heads, generator=source, device=device)} if variant.sink else {}
    dropped: dict[str, Any] = {}
    if variant.dropout:
        dropped = {"dropout_p": DROPOUT_P, "rng_state": torch.tensor([seed, 0], dtype=torch.int64, device=device)}
    return Inputs(
        q=normal(size.heads, size.q_len, variant.head_dim),
        k=normal(size.kv_heads, size.kv_len, variant.head_dim),
        v=normal(size.kv_heads, size.kv_len, variant.value_dim),
        params=params,
        extras={**sink, **params, **dropped},
    )


def fill_params(variant: Variant, size: ProblemSize, seed: int) -> dict[str, torch.Tensor]:
    """A tensor on the CPU for each param.

    One that is compared with itself has DOCUMENTS numbers in each sequence, of parts about as long as one another; one
    of a head that distances are multiplied by has the slopes of ALiBi, 2^(-8h/H). Others are as the check draws them: a
    table of distances has a normal number for each.
    """
    known = [tree for tree in trees(variant) if tree is not None]
    case = Case("bench", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads, runs=True)
    source = generator(seed, case.name)
    params = draw_params(variant, known, case, source)
    for param in variant.params:
        drawn = params[param.name]
        if _numbers_documents(param, known):
            params[param.name] = _documents(drawn.shape, source).to(drawn.dtype)
        elif drawn.is_floating_point() and param.shape[-1:] == ("H",) and usage(param, known).grows:
            heads = torch.arange(1, size.heads + 1, dtype=torch.float64)
            params[param.name] = torch.exp2(-8 * heads / size.heads).expand(drawn.shape).to(drawn.dtype).contiguous()
    return params


def _numbers_documents(param: Param, trees: Sequence[Node]) -> bool:
    """Whether two of its entries are asked whether they are the same."""
    compared = [node for tree in trees for node in walk(tree) if isinstance(node, Compare) and node.op == "=="]
    sides = [(node.left, node.right) for node in compared]
    return bool(param.shape) and any(
        all(isinstance(side, Read) and side.param == param.name for side in each) for each in sides
    )


def _documents(shape: Sequence[int], source: torch.Generator) -> torch.Tensor:
    """Numbers from 0 on along the last dim: parts of three to five fourths of their mean."""
    length = shape[-1]
    mean = length / DOCUMENTS
    moved = (torch.rand(*shape[:-1], DOCUMENTS - 1, generator=source) - 0.5) * mean / 4
    begins = (torch.arange(1, DOCUMENTS) * mean + moved).long()
    begins += begins % _TILE == 0
    return (torch.arange(length)[:, None] >= begins[..., None, :]).sum(-1)
