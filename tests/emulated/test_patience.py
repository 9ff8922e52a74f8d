"""Waits that take long, for others or for a count, are no deadlocks; and a launch can be repeated."""

from __future__ import annotations

import pytest
import torch

from fagen import emulate

from .compiled import line_of
from .launches import FEW, fault_of, ints, run, twin

FILE = "patience"
orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")


def test_a_thread_that_gives_up_after_many_tries() -> None:
    out = ints(2)
    run(FILE, "gives_up", 1, 2, [ints(1), out, 100000])
    assert out.tolist() == [100000, 100000]


@orders
def test_blocks_that_wait_for_all_others(order: emulate.Order) -> None:
    arrived, out = ints(1), ints(132)
    run(FILE, "meets", 132, 32, [arrived, out], **order)
    assert (out == 132).all()


@orders
def test_a_lock(order: emulate.Order) -> None:
    count = ints(1)
    run(FILE, twin("locked", False), 3, 32, [ints(1), count], **order)
    assert count.item() == 96
    fault = fault_of(FILE, twin("locked", True), 3, 32, [ints(1), ints(1)], **order)
    assert fault.kind == "race"


def test_a_lock_orders_nothing_without_fences() -> None:
    fault = fault_of(FILE, twin("locked", True), 2, 1, [ints(1), ints(1)], seed=1)
    assert fault.kind == "race" and fault.at is not None and fault.at.source == line_of(FILE, "behind a lock")


@orders
def test_tickets(order: emulate.Order) -> None:
    sequence = ints(20)
    run(FILE, "in_turn", 20, 32, [ints(1), ints(1), sequence], **order)
    assert sequence.tolist() == [2 ** (n + 1) - 1 for n in range(20)]


def test_the_same_seed_gives_the_same_run() -> None:
    def trail(seed: int) -> tuple[object, ...]:
        x, out = torch.arange(512.0), torch.zeros(128)
        statistics = run("copies", twin("refill", False), 1, 128, [x, out, 4], seed=seed)
        fault = fault_of("copies", twin("refill", True), 1, 128, [x, out, 4], seed=seed)
        return statistics, fault.what, fault.at, fault.other

    assert trail(5) == trail(5)
    assert len({str(trail(seed)) for seed in range(4)}) > 1
