"""Which weights dropout drops: the definition, in plain torch. templates/include/fagen/philox.h is the kernels' own.

Philox4x32-10 is the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). A
pair's number depends on the seed, the offset and the pair alone: b * H + h, i and j. docs/kernel.md states how.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_NUMBERS = 2**16  # that a pair's may be


@dataclass(frozen=True)
class Dropout:
    """``p`` is the probability that a weight is dropped, ``rng_state`` [2] int64 the seed and the offset."""

    p: float
    rng_state: Tensor

    @property
    def factor(self) -> float:
        """What kept weights are multiplied by."""
        return 1.0 / (1.0 - self.p)


def checked(name: str, takes: bool, dropout_p: float, rng_state: Tensor | None) -> Dropout | None:
    """What a call of the formula asks for, None where that is nothing; ``takes`` says whether the variant has dropout.

    ValueError or TypeError, in the name of ``name``, for what makes no sense.
    """
    dropout_p = probability(name, dropout_p)
    if not takes:
        if dropout_p or rng_state is not None:
            raise ValueError(f"{name}: dropout_p: this variant has no dropout; write `dropout: true` in its spec")
        return None
    if not dropout_p:
        return None
    if rng_state is None:
        raise ValueError(f"{name}: rng_state: expected the seed and the offset, found none")
    if rng_state.dtype != torch.int64:
        raise TypeError(f"{name}: rng_state: expected dtype torch.int64, found {rng_state.dtype}")
    if tuple(rng_state.shape) != (2,):
        raise ValueError(f"{name}: rng_state: expected shape [2], found {list(rng_state.shape)}")
    return Dropout(dropout_p, rng_state)


def probability(name: str, dropout_p: float) -> float:
    """``dropout_p`` as a number; ValueError where it is none that a weight may be dropped with."""
    dropout_p = float(dropout_p)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"{name}: dropout_p: expected 0 <= dropout_p < 1, found {dropout_p}")
    return dropout_p


def fresh_state(device: torch.device) -> Tensor:
    """A new seed and offset, [2] int64, from torch's generator of ``device``; torch.manual_seed makes them known."""
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=device)


def kept_pairs(dropout: Dropout, heads: Tensor, rows: Tensor, keys: int) -> Tensor:
    """Which pairs are kept: truth values [len(heads), len(rows), keys].

    ``heads`` are numbers b * H + h, ``rows`` indices i of query rows, both int64 and on one device.
    """
    j = torch.arange(keys, device=rows.device)
    place = torch.arange((keys + 15) // 16 * 4, device=rows.device)  # of calls: four of a row and 16 keys
    call = rows[:, None] % 8 * 4 + place % 4
    counter = torch.broadcast_tensors(
        call, rows[:, None] // 16, place // 4, heads[:, None, None]
    )  # each [heads, rows, calls]
    words = torch.stack(philox(counter, _key(dropout.rng_state.to(rows.device))), -1)
    # The rows r and r + 8 of a call have two words each: one for keys c and c + 1, one for c + 8 and c + 9.
    mine = rows[:, None] // 8 % 2 + 2 * torch.arange(2, device=rows.device)
    words = words.gather(-1, mine[:, None].expand(*words.shape[:-1], 2))
    numbers = torch.stack((words & 0xFFFF, words >> 16), -1).flatten(2)  # [heads, rows, (block, call, side, half)]
    order = j // 16 * 16 + j % 8 // 2 * 4 + j % 16 // 8 * 2 + j % 2
    return numbers[..., order] >= threshold(dropout.p)


def dropout_mask(dropout_p: float, rng_state: Tensor, *, batch: int, heads: int, q_len: int, kv_len: int) -> Tensor:
    """The pairs that a call keeps: truth values [batch, heads, q_len, kv_len], where ``rng_state`` is.

    ``dropout_p`` and ``rng_state`` ([2] int64) are those of the call. ValueError or TypeError where they are not such.
    """
    dropout = checked("dropout_mask", True, dropout_p, rng_state)
    if dropout is None:
        return torch.ones(batch, heads, q_len, kv_len, dtype=torch.bool, device=rng_state.device)
    head, row = (torch.arange(count, device=rng_state.device) for count in (batch * heads, q_len))
    return kept_pairs(dropout, head, row, kv_len).unflatten(0, (batch, heads))


def threshold(dropout_p: float) -> int:
    """A pair whose 16-bit number is below this is dropped."""
    return math.floor(dropout_p * _NUMBERS + 0.5)


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 of four counter words with two key words: int64 tensors of numbers below 2^32."""
    x, y, z, w = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap, and lose nothing of their 64 bits.
        low, high = x * 0xD2511F53, z * 0xCD9E8D57
        x, y, z, w = ((high >> 32) & _WORD) ^ y ^ k0, high & _WORD, ((low >> 32) & _WORD) ^ w ^ k1, low & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return x, y, z, w


def _key(rng_state: Tensor) -> tuple[Tensor, Tensor]:
    """The key of a call's numbers: two words of Philox, of the offset with the seed for a key."""
    seed, offset = rng_state
    nothing = torch.zeros_like(offset)
    counter = (offset & _WORD, (offset >> 32) & _WORD, nothing, nothing)
    return philox(counter, (seed & _WORD, (seed >> 32) & _WORD))[:2]
