"""Code that others wrote, as it comes from their headers: CUB's block algorithms, libcu++, cooperative groups; and a
kernel as beginners write it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from fagen import emulate

from .compiled import ptx_of

orders = pytest.mark.parametrize(
    "order", emulate.orders(seeds=2), ids=lambda order: f"{order['completions']}{order['seed']}"
)


def launch(file: str, kernel: str, grid: int, block: int, args: list[Any], order: emulate.Order) -> None:
    emulate.launch(ptx_of(file), kernel, grid, block, args, **order)


@orders
def test_block_reduce(order: emulate.Order) -> None:
    x, out = torch.randint(-1000, 1000, (3, 128), dtype=torch.int32), torch.zeros(3, dtype=torch.int32)
    launch("cub", "reduce", 3, 128, [x, out], order)
    assert torch.equal(out, x.sum(1, dtype=torch.int32))


@orders
def test_block_scan(order: emulate.Order) -> None:
    x, out = torch.randint(-1000, 1000, (128,), dtype=torch.int32), torch.zeros(128, dtype=torch.int32)
    launch("cub", "scan", 1, 128, [x, out], order)
    assert torch.equal(out, x.cumsum(0, dtype=torch.int32) - x)


@orders
def test_block_radix_sort(order: emulate.Order) -> None:
    x, out = torch.randint(0, 2**31 - 1, (512,), dtype=torch.int32), torch.zeros(512, dtype=torch.int32)
    launch("cub", "sort", 1, 128, [x, out], order)
    assert torch.equal(out, x.sort().values)


@orders
def test_cuda_barrier(order: emulate.Order) -> None:
    x, out = torch.randint(-9, 9, (64,)).float(), torch.zeros(64)
    launch("threads", "with_barrier", 1, 64, [x, out, 4], order)
    wanted = x
    for _ in range(4):
        wanted = wanted + wanted.roll(-1)
    assert torch.equal(out, wanted)


@orders
def test_cuda_pipeline(order: emulate.Order) -> None:
    x, out = torch.randint(-9, 9, (5, 128)).float(), torch.zeros(128)
    launch("threads", "with_pipeline", 1, 128, [x, out, 5], order)
    assert torch.equal(out, x.flip(1).sum(0))


@orders
def test_tiles_of_cooperative_groups(order: emulate.Order) -> None:
    x, out = torch.randint(-1000, 1000, (64,), dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    launch("threads", "tiles", 1, 64, [x, out], order)
    assert torch.equal(out, x.view(8, 8).sum(1, dtype=torch.int32))


@orders
def test_divergence_calls_and_local_arrays(order: emulate.Order) -> None:
    n, k = 200, (3, 17, 8, 30)
    x = torch.empty(256).uniform_(-2, 2)
    x[7] = 3e6  # sinf takes its slow path, through local memory
    out = torch.full((256,), -7.0)
    given = struct.pack("<QQq4i", x.data_ptr(), out.data_ptr(), n, *k)
    emulate.launch(ptx_of("naive"), "kern", 2, 128, [given], memory=[emulate.readonly(x), out], **order)
    t = torch.arange(256)
    own = torch.sin((x[:, None] * torch.arange(16)).double())
    s = torch.where(t < n, x, 0.0).double()
    v = s.view(2, 128).flip(1).reshape(-1) + own[t, torch.tensor(k)[t & 3] & 15]
    v = v.view(8, 32).sum(1, keepdim=True).expand(8, 32).reshape(-1)
    slow = sum(v * i for i in range(k[0]))
    v = torch.where(v > 3, slow, v.exp())
    wanted = (v / (v + 1).to(torch.bfloat16).double()).float()
    assert torch.allclose(out[:n], wanted[:n], rtol=1e-2)  # the divisor is rounded to bfloat16
    assert torch.equal(out[n:], torch.full((56,), -7.0))
