"""Memory: what was never written, is not there, is not aligned, or is read only."""

from __future__ import annotations

import pytest
import torch

from fagen import emulate

from .launches import FEW, check_place, fault_of, ints, run, twin

FILE = "spaces"
orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")
FIRST = 1024  # address of shared memory's first byte


@orders
def test_shared_memory_that_nobody_has_written(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("uninitialised", True), 1, 64, [ints(64)], **order)
    check_place(fault.at, FILE, "never written", "ld.shared", thread=53)
    assert (fault.kind, fault.space, fault.address, fault.bytes) == ("uninitialised", "shared", FIRST + 4 * 21, 4)
    run(FILE, twin("uninitialised", False), 1, 64, [ints(64)], **order)


@pytest.mark.parametrize(("index", "what"), [(16, "4 bytes beyond"), (-1, "below"), (400, "1540 bytes beyond")])
def test_beyond_shared_memory(index: int, what: str) -> None:
    fault = fault_of(FILE, twin("beyond_shared", True), 1, 32, [ints(32), index], shared=64)
    check_place(fault.at, FILE, "beyond shared memory", "st.shared", thread=11)
    assert (fault.kind, fault.space, fault.address) == ("out of bounds", "shared", FIRST + 4 * index)
    assert what in fault.what
    run(FILE, twin("beyond_shared", False), 1, 32, [ints(32), index], shared=64)


@pytest.mark.parametrize(
    ("index", "what"),
    [(32, "0 bytes behind the end of argument 0 (128 bytes)"), (-2, "8 bytes before the beginning of argument 0")],
)
def test_beyond_global_memory(index: int, what: str) -> None:
    x, out = ints(32), ints(32)
    fault = fault_of(FILE, twin("beyond_global", True), 1, 32, [x, out, index])
    check_place(fault.at, FILE, "beyond global memory", "ld.global", thread=7)
    assert (fault.kind, fault.space, fault.address) == ("out of bounds", "global", x.data_ptr() + 4 * index)
    assert what in fault.what
    run(FILE, twin("beyond_global", False), 1, 32, [x, out, index])


def test_what_another_tensor_has_is_not_within_reach() -> None:
    """Both lie in one allocation, of which the launch may touch the first half."""
    whole = ints(64)
    first = whole[:32].clone()
    fault = fault_of(FILE, twin("beyond_global", True), 1, 32, [first, ints(32), 4096])
    assert fault.kind == "out of bounds"


def test_a_vector_across_the_end() -> None:
    x, out = torch.zeros(7), torch.zeros(8)
    fault = fault_of(FILE, twin("across_the_end", True), 1, 32, [x, out])
    check_place(fault.at, FILE, "across the end", "ld.global", thread=4)
    assert (fault.kind, fault.address, fault.bytes) == ("out of bounds", x.data_ptr() + 24, 8)
    assert "across the end of argument 0 (28 bytes)" in fault.what
    run(FILE, twin("across_the_end", False), 1, 32, [x, out])


@pytest.mark.parametrize("index", [8, 1000, -1])
def test_beyond_local_memory(index: int) -> None:
    fault = fault_of(FILE, twin("beyond_local", True), 1, 32, [ints(32), index])
    check_place(fault.at, FILE, "beyond local memory", "ld.", thread=13)
    assert (fault.kind, fault.space, fault.bytes) == ("out of bounds", "local", 4)
    assert "local memory" in fault.what
    out = ints(32)
    run(FILE, twin("beyond_local", False), 1, 32, [out, 13])
    assert out[0] == 5


def test_a_copy_from_beyond() -> None:
    x = torch.arange(128.0)
    fault = fault_of(FILE, twin("beyond_copy", True), 1, 32, [x, torch.zeros(32), 128])
    check_place(fault.at, FILE, "copy from beyond", "cp.async", thread=31)
    assert (fault.kind, fault.space, fault.address) == ("out of bounds", "global", x.data_ptr() + 512)
    out = torch.zeros(32)
    run(FILE, twin("beyond_copy", False), 1, 32, [x, out, 128])
    assert torch.equal(out, x[::4])


def test_misaligned() -> None:
    x, out = ints(32), ints(4)
    assert x.data_ptr() % 16 == 0
    fault = fault_of(FILE, twin("misaligned", True), 1, 32, [x, out])
    check_place(fault.at, FILE, "misaligned load", "ld.global.v4", thread=30)
    assert (fault.kind, fault.space, fault.address, fault.bytes) == ("misaligned", "global", x.data_ptr() + 8, 16)
    assert "no multiple of 16" in fault.what
    run(FILE, twin("misaligned", False), 1, 32, [x, out])
    fault = fault_of(FILE, twin("misaligned_shared", True), 1, 32, [ints(32)])
    check_place(fault.at, FILE, "misaligned store", "st.", thread=2)
    assert (fault.kind, fault.space, fault.address, fault.bytes) == ("misaligned", "shared", FIRST + 6, 4)
    run(FILE, twin("misaligned_shared", False), 1, 32, [ints(32)])


def test_a_store_into_what_is_read_only() -> None:
    x, out = ints(32), ints(32)
    fault = fault_of(FILE, twin("read_only", True), 1, 32, [emulate.readonly(x), out])
    check_place(fault.at, FILE, "store into what is read only", "st.global", thread=5)
    assert (fault.kind, fault.space, fault.address, fault.bytes) == ("read only", "global", x.data_ptr() + 4, 4)
    assert "argument 0, which is read only" in fault.what
    assert x[1] == 0
    run(FILE, twin("read_only", False), 1, 32, [emulate.readonly(x), out])
    assert out[1] == 2
