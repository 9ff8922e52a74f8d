"""Kernels as they are written for sm_90a, warp-specialised, pipelined, persistent: right ones and faulty ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fagen import emulate

from .compiled import ptx_of
from .launches import FEW, check_place, fault_of, ints, run, twin

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")
SHARED = 3 * (128 + 64) * 128 + 2 * 64 * 128 + 48


def given(depth: int, rows: int = 128, columns: int = 64) -> tuple[list[Any], dict[str, Any], Tensor, Tensor]:
    """Arguments, keywords, where the product goes, and what it should be."""
    a, b = (torch.randn(n, depth).bfloat16() for n in (rows, columns))
    out = torch.zeros(rows, columns)
    maps = [
        emulate.encode_tiled(a, (128, 64), swizzle=128),
        emulate.encode_tiled(b, (64, 64), swizzle=128),
        emulate.encode_tiled(out, (64, 32)),
    ]
    more = {"shared": SHARED, "memory": [emulate.readonly(a), emulate.readonly(b), out]}
    return [*maps, depth], more, out, a.float() @ b.float().T


@orders
def test_a_pipelined_product(order: emulate.Order) -> None:
    for depth, rows, columns in ((64, 128, 64), (448, 256, 128)):
        args, more, out, wanted = given(depth, rows, columns)
        grid = (rows // 128, columns // 64)
        emulate.launch(ptx_of("warpgroups"), "productILi0E", grid, 384, args, **more, **order)
        torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-4)


# Number, kind, what is said, mark, opcode.
FAULTS = [
    (1, "race", "the write of an asynchronous copy", "multiply", "wgmma"),
    (2, "race", "the read of a wgmma", "load", "cp.async.bulk"),
    (3, "wgmma", "without a wgmma.fence before it", "multiply", "wgmma"),
    (4, "wgmma", "which a wgmma in flight has as an accumulator", "touch", "add.f32"),
    (5, "limits", "setmaxnreg over budget", "registers", "setmaxnreg"),
    (6, "proxy", "without a fence.proxy.async", "store", "cp.async.bulk"),
    (7, "", "", "", ""),
    (8, "", "", "", ""),
    (9, "deadlock", "", "", ""),
]


@orders
@pytest.mark.parametrize(("number", "kind", "says", "mark", "opcode"), FAULTS, ids=[str(each[0]) for each in FAULTS])
def test_a_fault(number: int, kind: str, says: str, mark: str, opcode: str, order: emulate.Order) -> None:
    args, more, _, _ = given(64 * 7)
    fault = fault_of("warpgroups", f"productILi{number}E", 1, 384, args, **more, **order)
    if number == 7:  # of three stages, the fourth step is the first to ask for another parity
        assert fault.kind in ("mbarrier", "race", "deadlock")
        return
    if number == 8:  # a phase is armed twice, or a stage filled that is read
        assert fault.kind in ("mbarrier", "race")
        return
    assert fault.kind == kind and says in fault.what, fault
    if opcode and number != 2:
        check_place(fault.at, "warpgroups", mark, opcode)


@orders
def test_blocks_that_take_tiles_from_a_counter(order: emulate.Order) -> None:
    x, out = torch.randn(7, 64), torch.zeros(7, 64)
    run("warpgroups", twin("persistent", False), 2, 32, [x, out, ints(1), 7], **order)
    assert torch.equal(out, 2 * x)
    fault = fault_of("warpgroups", twin("persistent", True), 2, 32, [x, out, ints(1), 7], **order)
    assert fault.kind == "race"
