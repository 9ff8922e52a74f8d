"""cp.async: a missing wait or barrier is found whether copies land at once, at last, or at any time in between."""

# ruff: noqa: E501  a table in lines as long as they are

from __future__ import annotations

from typing import Any

import pytest
import torch

from fagen import emulate

from .launches import check_race, fault_of, run, twin

orders = pytest.mark.parametrize(
    "order", emulate.orders(seeds=3), ids=lambda order: f"{order['completions']}{order['seed']}"
)
CP, LD, ST = "cp.async", "ld.shared", "st."

# Kernel, threads, floats read, more arguments; both ends of the race: mark, opcode.
CASES: list[tuple[str, int, int, list[Any], tuple[tuple[str, str], tuple[str, str]]]] = [
    ("refill", 128, 512, [4], (("refill", CP), ("read of a stage", LD))),
    ("unwaited", 32, 32, [], (("unwaited copy", CP), ("unwaited read", LD))),
    ("one_too_many", 32, 64, [], (("copy of group 1", CP), ("read of group 1", LD))),
    ("others_copies", 64, 64, [], (("other's copy", CP), ("read of other's copy", LD))),
    ("uncommitted", 32, 32, [], (("uncommitted copy", CP), ("read of the uncommitted", LD))),
    ("changed_source", 32, 32, [], (("copy of a source", CP), ("change of a source", ST))),
    ("overwritten", 32, 32, [], (("copy beneath", CP), ("store above", ST))),
    ("copies_arrive", 32, 32, [], (("copy at a gate", CP), ("read behind a gate", LD))),
]


@orders
@pytest.mark.parametrize(("name", "block", "size", "more", "ends"), CASES, ids=[case[0] for case in CASES])
def test_it_is_found_with_every_completion_order(
    name: str, block: int, size: int, more: list[Any], ends: Any, order: emulate.Order
) -> None:
    args = [torch.arange(float(size)), torch.zeros(block), *more]
    fault = fault_of("copies", twin(name, True), 1, block, args, **order)
    check_race(fault, "copies", *((mark, opcode, None, 0) for mark, opcode in ends))
    assert "an asynchronous copy" in fault.what
    if name in ("unwaited", "one_too_many", "uncommitted", "changed_source", "overwritten"):
        assert fault.at is not None and fault.other is not None and fault.at.thread == fault.other.thread


@orders
def test_their_twins_are_silent_and_right(order: emulate.Order) -> None:
    for name, block, size, more, _ in CASES:
        x, out = torch.arange(float(size)), torch.zeros(block)
        run("copies", twin(name, False), 1, block, [x, out, *more], **order)
        wanted = {
            "refill": torch.arange(512.0).view(4, 128).flip(1).sum(0),
            "one_too_many": torch.arange(64.0).view(2, 32).sum(0),
            "others_copies": torch.arange(64.0).flip(0),
            "overwritten": torch.ones(32),
            "copies_arrive": torch.arange(32.0).flip(0),
        }.get(name, torch.arange(32.0))
        assert torch.equal(out, wanted), name


def test_without_checks_a_missing_barrier_gives_wrong_numbers_early_and_a_missing_wait_late() -> None:
    """What the orders of completion are for, besides the search for races."""

    def result(name: str, size: int, block: int, more: list[Any], completions: str) -> torch.Tensor:
        out = torch.zeros(block)
        args = [torch.arange(float(size)), out, *more]
        run("copies", twin(name, True), 1, block, args, completions=completions, checks=False)
        return out

    x = torch.arange(32.0)
    assert torch.equal(result("unwaited", 32, 32, [], "earliest"), x)
    assert not torch.equal(result("unwaited", 32, 32, [], "latest"), x)
    assert torch.equal(result("overwritten", 32, 32, [], "earliest"), torch.ones(32))
    assert torch.equal(result("overwritten", 32, 32, [], "latest"), x)
    sums = torch.arange(512.0).view(4, 128).flip(1).sum(0)
    assert not torch.equal(result("refill", 512, 128, [4], "earliest"), sums)


def test_a_thread_that_is_ready_early_does_not_hide_it() -> None:
    """Of one warp alone nobody is ever late, and the second barrier is missed nevertheless."""
    fault = fault_of("copies", twin("refill", True), 1, 128, [torch.zeros(512), torch.zeros(128), 3], seed=7)
    assert fault.kind == "race"
