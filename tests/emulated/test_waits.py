"""Waits that never end, and barriers that are used wrongly."""

from __future__ import annotations

import pytest

from fagen import emulate

from .compiled import ptx_of
from .launches import FEW, check_place, fault_of, ints, run, twin

FILE = "waits"
orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")


@orders
def test_exited_threads_do_not_arrive(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("exited", True), 1, 64, [ints(64), 60], **order)
    check_place(fault.at, FILE, "where the exited are missed", "bar.sync")
    assert fault.kind == "deadlock"
    assert "60 threads (block 0 thread 0 and on) at a barrier" in fault.what
    assert "some threads of the block have exited" in fault.what
    run(FILE, twin("exited", False), 1, 64, [ints(64), 60], **order)


@orders
def test_a_lost_arrival(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("lost_arrival", True), 1, 64, [ints(64)], **order)
    check_place(fault.at, FILE, "wait for arrivals", "bar.sync")
    assert fault.kind == "deadlock" and "32 threads (block 0 thread 0 and on) at a barrier" in fault.what
    assert "`bar.sync 1, 64;`" in fault.what
    run(FILE, twin("lost_arrival", False), 1, 64, [ints(64)], **order)


@orders
def test_a_spin_on_what_nobody_writes(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("spin", True), 1, 64, [ints(1), ints(1)], **order)
    check_place(fault.at, FILE, "spin", "bra", thread=3)
    assert fault.kind == "deadlock" and "1 thread (block 0 thread 3) in a loop that waits" in fault.what
    out = ints(1)
    run(FILE, twin("spin", False), 1, 64, [ints(1), out], **order)
    assert out.item() == 1


@orders
def test_lanes_that_wait_for_each_other(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("crossed", True), 1, 32, [ints(2), ints(2)], **order)
    check_place(fault.at, FILE, "crossed", "bra")
    assert fault.kind == "deadlock" and "2 threads" in fault.what
    run(FILE, twin("crossed", False), 1, 32, [ints(2), ints(2)], **order)


@orders
def test_an_aligned_barrier_that_is_diverged(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("diverged", True), 1, 32, [ints(32)], **order)
    assert fault.kind == "barrier" and "aligned barrier" in fault.what
    assert fault.at is not None and fault.at.text == "bar.sync 0;" and fault.at.source.startswith("waits.cu:")
    run(FILE, twin("diverged", False), 1, 32, [ints(32)], **order)
    out = ints(32)
    run(FILE, "diverged_unaligned", 1, 32, [out], **order)
    assert out.tolist() == [2] * 16 + [1] * 16


@orders
def test_wrong_counts(order: emulate.Order) -> None:
    fault = fault_of(FILE, twin("odd_count", True), 1, 64, [ints(64)], **order)
    check_place(fault.at, FILE, "odd count", "bar.sync")
    assert fault.kind == "barrier" and "a count of 48 threads: no multiple of 32" in fault.what
    run(FILE, twin("odd_count", False), 1, 64, [ints(64)], **order)

    fault = fault_of(FILE, twin("two_counts", True), 1, 64, [ints(64)], **order)
    check_place(fault.at, FILE, "two counts", "bar.sync")
    assert fault.kind == "barrier" and "for 96" in fault.what and "for 64" in fault.what
    run(FILE, twin("two_counts", False), 1, 64, [ints(64)], **order)

    fault = fault_of(FILE, twin("no_such_barrier", True), 1, 64, [ints(64), 16], **order)
    check_place(fault.at, FILE, "no such barrier", "bar.sync")
    assert fault.kind == "barrier" and "barrier 16: there are barriers 0 to 15" in fault.what
    run(FILE, twin("no_such_barrier", False), 1, 64, [ints(64), 16], **order)


def test_a_trap() -> None:
    out = ints(64)
    fault = fault_of(FILE, twin("trapped", True), 1, 64, [out, 45])
    check_place(fault.at, FILE, "trap", "trap", thread=45)
    assert fault.kind == "trap"
    run(FILE, twin("trapped", False), 1, 64, [out, 45])


def test_launch_limits() -> None:
    text = ptx_of(FILE)

    def limited(grid: object, block: object, shared: int = 4096) -> str:
        with pytest.raises(emulate.Fault) as caught:
            emulate.launch(text, "bounded", grid, block, [ints(2048)], shared=shared)  # type: ignore[arg-type]
        assert caught.value.kind == "limits" and "bounded" in str(caught.value)
        return caught.value.what

    assert limited(1, 1056).startswith("threads a block: 1056, of at most 1024")
    assert limited(1, 96).startswith("threads a block, by the kernel's own bounds: 96, of at most 64")
    assert limited(1, (1, 1, 64), shared=200000).startswith(
        "bytes of shared memory on sm_80: 200000, of at most 166912"
    )
    assert limited((1, 65536), 32).startswith("blocks along y: 65536")
    assert limited((2**31, 1), 32).startswith("blocks along x")
    assert limited(1, (1, 1, 65)).startswith("threads")
    out = ints(2048)
    emulate.launch(text, "bounded", 1, 64, [out], shared=163 * 1024)
    assert out.sum() == 64
