"""Clusters: multicast, remote arrivals, distributed shared memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fagen import emulate

from .launches import FEW, check_place, fault_of, ints, run

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")


def tiles(count: int = 5) -> tuple[list[Any], dict[str, Any], torch.Tensor, torch.Tensor]:
    x, out = torch.randn(64 * count, 32), torch.zeros(4, 32)
    tile = emulate.encode_tiled(x, (32, 32), swizzle=128)
    return [tile, out, count], {"shared": 8192, "memory": [emulate.readonly(x)]}, x, out


@orders
def test_tiles_that_two_blocks_share(order: emulate.Order) -> None:
    args, more, x, out = tiles()
    run("clusters", "shared_tilesILi0E", 4, 32, args, **more, **order)
    rows = x.reshape(-1, 8, 8, 4)  # of eight rows each row's chunks of 16 bytes change places
    wanted = torch.stack([rows[:, r, [c ^ r for c in range(8)]] for r in range(8)]).sum((0, 1)).reshape(32)
    torch.testing.assert_close(out, wanted.expand(4, 32), rtol=1e-4, atol=1e-4)


@orders
@pytest.mark.parametrize("number", [1, 2, 3])
def test_what_goes_wrong_among_them(number: int, order: emulate.Order) -> None:
    args, more, _, _ = tiles()
    if number == 3:
        with pytest.raises(emulate.Fault) as caught:  # which block ends first hangs on the order
            for seed in range(20):
                run("clusters", "shared_tilesILi3E", 4, 32, args, **more, completions=order["completions"], seed=seed)
        assert "a block that has ended" in caught.value.what
        return
    fault = fault_of("clusters", f"shared_tilesILi{number}E", 2, 32, args, **more, **order)
    if number == 1:
        assert fault.kind in ("proxy", "mbarrier", "race"), fault
    else:
        assert fault.kind in ("race", "mbarrier"), fault


@orders
@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_neighbours_memory(size: int, order: emulate.Order) -> None:
    out = ints(8 * 32)
    run("clusters", "ringILi0E", 8, 32, [out], cluster=size, **order)
    wanted = [100 * ((n - 1) % size) + t for n in range(8) for t in range(32)]
    assert out.tolist() == wanted


@orders
def test_without_a_barrier_of_the_cluster(order: emulate.Order) -> None:
    for number in (1, 2):
        fault = fault_of("clusters", f"ringILi{number}E", 2, 32, [ints(64)], cluster=2, **order)
        assert fault.kind in ("race", "uninitialised"), fault
        if fault.kind == "race":
            ends = [at for at in (fault.at, fault.other) if at is not None]
            assert len(ends) == 2 and ends[0].block != ends[1].block
    with pytest.raises(emulate.Fault) as caught:
        for seed in range(20):
            run("clusters", "ringILi3E", 2, 32, [ints(64)], cluster=2, seed=seed)
    assert "a block that has ended" in caught.value.what
    check_place(caught.value.at, "clusters", "give", "st.shared::cluster", block=0)


def test_limits() -> None:
    for grid, cluster, says in ((3, 2, "no whole number of clusters"), (32, 32, "at most 16")):
        fault = fault_of("clusters", "ringILi0E", grid, 32, [ints(64)], cluster=cluster)
        assert fault.kind == "limits" and says in fault.what
    fault = fault_of("clusters", "shared_tilesILi0E", 4, 32, tiles()[0], cluster=4, shared=8192)
    assert fault.kind == "limits" and "which requires (2, 1, 1)" in fault.what


@orders
def test_a_copy_into_a_neighbours_memory(order: emulate.Order) -> None:
    out = ints(64)
    run("clusters", "sendILb0E", 2, 32, [out], **order)
    assert out.tolist() == [100 * (1 - rank) + t for rank in range(2) for t in range(32)]
    fault = fault_of("clusters", "sendILb1E", 2, 32, [ints(64)], **order)
    assert fault.kind == "proxy", fault
