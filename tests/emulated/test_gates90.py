"""What can be done wrong with mbarriers, copies, products and registers of sm_90a: each found, each twin silent."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fagen import emulate

from .launches import FEW, check_place, fault_of, ints, run, twin

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")
FILE = "gates90"


def floats() -> list[Any]:
    return [torch.zeros(128)]


def copied() -> list[Any]:
    return [torch.randn(64), torch.zeros(64)]


_MAPPED = torch.randn(8, 32)


def mapped() -> list[Any]:
    return [emulate.encode_tiled(_MAPPED, (1, 32), swizzle=128), torch.zeros(32)]


# Kernel, threads, arguments, kind, what is said, mark and opcode of the place.
CASES: list[tuple[str, int, Any, str, str, str, str]] = [
    ("unfenced_product", 128, floats, "proxy", "without a fence.proxy.async", "product", "wgmma"),
    ("rewritten_product", 128, floats, "race", "the read of a wgmma", "rewrite", "st.shared"),
    ("one_product_too_many", 128, floats, "wgmma", "a read of %f", "add", "add.f32"),
    ("disagreeing", 128, floats, "collective", "different descriptors", "differ", "wgmma"),
    ("not_armed_again", 32, copied, "deadlock", "in a loop that waits", "", ""),
    ("odd_bytes", 32, copied, "misaligned", "60 bytes, no multiple of 16", "odd", "cp.async.bulk"),
    ("off_alignment", 32, mapped, "tensor map", "does not begin at a multiple of 128 bytes", "off", "cp.async.bulk"),
    ("fewer_by_inc", 128, floats, "limits", "setmaxnreg.inc to 104 registers, of 200", "inc", "setmaxnreg"),
    ("arrives_twice", 32, floats, "barrier", "a second arrival", "second", "barrier.cluster"),
]


@orders
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_it_is_found(case: Any, order: emulate.Order) -> None:
    name, block, args, kind, says, mark, opcode = case
    fault = fault_of(FILE, twin(name, True), 1, block, args(), memory=[_MAPPED], **order)
    assert fault.kind == kind and says in fault.what, fault
    if mark:
        check_place(fault.at, FILE, mark, opcode)


@orders
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_its_twin_is_silent(case: Any, order: emulate.Order) -> None:
    name, block, args, *_ = case
    given = args()
    run(FILE, twin(name, False), 1, block, given, memory=[_MAPPED], **order)
    wanted = {
        "unfenced_product": torch.full((128,), 16.0),
        "rewritten_product": torch.full((128,), 16.0),
        "one_product_too_many": torch.full((128,), 32.0),
        "not_armed_again": given[0],
        "off_alignment": _MAPPED[0],
    }.get(name)
    if wanted is not None:
        assert torch.equal(given[-1], wanted), name


@orders
def test_a_phase_by_the_state_of_an_arrival(order: emulate.Order) -> None:
    out = ints(64)
    run(FILE, "by_state", 1, 64, [out], **order)
    assert out.tolist() == list(range(63, -1, -1))


@orders
def test_bytes_that_a_thread_tells_of_while_others_sleep(order: emulate.Order) -> None:
    out = ints(64)
    run(FILE, "by_hand", 1, 64, [out], **order)
    assert out.tolist() == [7] * 64
