"""Are the tiles that a kernel visits those that its mask admits anything of?"""

from __future__ import annotations

import torch
from torch import Tensor

from ..reference import mask_matrix
from ..tiles import TileCounts
from .call import Function
from .cases import Case, Tiling
from .inputs import Inputs


def visit_fault(kernel: Function, tiling: Tiling, case: Case, inputs: Inputs, device: str = "cpu") -> str:
    """What is wrong with the forward kernel's count of tiles, held against the mask pair by pair; "" if nothing.

    A tile that is not visited though a pair of it is admitted shows here also where its keys weigh nothing. Kernels
    that count none are not asked.
    """
    ops = getattr(kernel, "ops", None)
    if ops is None:
        return ""
    there = inputs.on(device)
    params = [there.params[param.name] for param in kernel.variant.params]
    counts = TileCounts(*ops.tile_counts(there.q, there.k, *params).tolist())
    shape = case.batch, case.heads, case.q_len, case.kv_len
    mask = mask_matrix(kernel.variant, *shape, inputs.params, case.kv_heads).expand(shape)
    rows, keys = tiling.sizes[0]
    tiles = _tiles(mask, rows, keys)
    touched = tiles.any(-1)
    # Keys past the end make a tile partial; rows past the end are not there.
    starts = torch.arange(0, case.q_len, rows)[:, None]
    whole = tiles.sum(-1) == (case.q_len - starts).clamp(max=rows) * keys
    if counts.total != touched.numel():
        return f"it counts {counts.total} tiles of {touched.numel()}"
    if counts.full > int(whole.sum()):
        return f"it runs {counts.full} tiles without their mask, which admits only {int(whole.sum())} whole"
    if counts.full + counts.partial - counts.empty != int(touched.sum()):
        visited = f"{counts.full + counts.partial} tiles, {counts.empty} of them in vain"
        return f"it visits {visited}, and the mask admits pairs of {int(touched.sum())}"
    return ""


def _tiles(pairs: Tensor, rows: int, keys: int) -> Tensor:
    """[B, H, Sq, Skv] as [B, H, tiles of rows, tiles of keys, pairs of a tile], zeros past the ends."""
    q_len, kv_len = pairs.shape[2:]
    padded = torch.nn.functional.pad(pairs, (0, -kv_len % keys, 0, -q_len % rows))
    tiles = padded.unflatten(3, (-1, keys)).unflatten(2, (-1, rows))  # [B, H, tiles, rows, tiles, keys]
    return tiles.transpose(3, 4).flatten(4)
