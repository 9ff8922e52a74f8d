"""Lanes that should act together and do not; the rules of mbarriers."""

from __future__ import annotations

import pytest
import torch

from fagen import emulate

from .launches import FEW, check_place, check_race, fault_of, ints, run, twin

orders = pytest.mark.parametrize("order", FEW, ids=lambda order: f"{order['completions']}{order['seed']}")


@orders
def test_a_lane_that_is_not_in_its_own_mask(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("not_in_its_mask", True), 1, 32, [ints(32)], **order)
    check_place(fault.at, "warps", "not in its mask", "shfl.sync.bfly.b32", thread=11)
    assert fault.kind == "collective" and "lane 11 is not in its own mask" in fault.what
    out = ints(32)
    run("warps", twin("not_in_its_mask", False), 1, 32, [out], **order)
    assert out.tolist() == [lane ^ 1 for lane in range(32)]


@orders
def test_masks_that_do_not_agree(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("two_masks", True), 1, 32, [ints(32)], **order)
    check_place(fault.at, "warps", "two masks", "vote.sync.ballot.b32")
    assert fault.kind == "deadlock" and "for other lanes" in fault.what
    out = ints(32)
    run("warps", twin("two_masks", False), 1, 32, [out], **order)
    assert (out == -2).all()


@orders
def test_mma_by_lanes_at_two_places(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("diverged_mma", True), 1, 32, [torch.zeros(32)], **order)
    check_place(fault.at, "warps", "mma", "mma.sync.aligned.m16n8k8")
    assert fault.kind == "collective" and "another instruction" in fault.what
    out = torch.zeros(32)
    run("warps", twin("diverged_mma", False), 1, 32, [out], **order)
    assert (out == 32).all()


@orders
def test_mma_without_a_lane_that_has_exited(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("exited_lane", True), 1, 32, [torch.zeros(32), 19], **order)
    check_place(fault.at, "warps", "mma", "mma.sync.aligned.m16n8k8")
    assert fault.kind == "collective" and "lane 19 has exited" in fault.what
    run("warps", twin("exited_lane", False), 1, 32, [torch.zeros(32), 19], **order)


def test_mma_in_a_warp_that_is_not_whole() -> None:
    fault = fault_of("warps", twin("exited_lane", False), 1, 24, [torch.zeros(32), 19])
    assert fault.kind == "collective" and "lane 24 does not exist" in fault.what


@orders
def test_ldmatrix_of_a_row_that_is_not_there(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("wrong_row", True), 1, 32, [ints(32)], **order)
    check_place(fault.at, "warps", "wrong row", "ldmatrix", thread=6)
    assert (fault.kind, fault.space, fault.address) == ("out of bounds", "shared", 1024 + 640)
    run("warps", twin("wrong_row", False), 1, 32, [ints(32)], **order)


@orders
def test_a_store_under_a_matrix_that_others_read(order: emulate.Order) -> None:
    fault = fault_of("warps", twin("stored_under", True), 1, 32, [ints(32)], **order)
    ends = (("matrix read", "ldmatrix", 2, 0), ("store under it", "st.shared", 5, 0))
    check_race(fault, "warps", *ends)
    run("warps", twin("stored_under", False), 1, 32, [ints(32)], **order)


# ---- mbarriers


@orders
@pytest.mark.parametrize("missing", range(5))
def test_a_slot_passed_from_warp_to_warp(missing: int, order: emulate.Order) -> None:
    """Nothing is missing; the barrier after the initialisation; the wait for an empty slot, for a full one; an
    arrival."""
    out = ints(32)
    if missing == 0:
        run("gates", "passILi0E", 1, 64, [out, 5], **order)
        assert out.tolist() == [10 + 5 * (31 - lane) for lane in range(32)]
        return
    fault = fault_of("gates", f"passILi{missing}E", 1, 64, [out, 5], **order)
    if missing == 1:  # whoever comes first finds no mbarrier, or one that is being made
        assert fault.kind in ("mbarrier", "race", "uninitialised")
        assert fault.at is not None and fault.at.text.startswith(("mbarrier", "@"))
    elif missing == 2:  # at the latest the arrival is one too many
        assert fault.kind in ("race", "mbarrier")
    elif missing == 3:
        assert fault.kind in ("race", "uninitialised")
        check_place(fault.at if "ld" in str(fault.at) else fault.other, "gates", "take", "ld.shared")
    else:
        assert fault.kind == "deadlock" and "32 threads (block 0 thread 32 and on) in a loop that waits" in fault.what
        check_place(fault.at, "gates", "test", "bra")


@orders
def test_more_arrivals_than_a_phase_waits_for(order: emulate.Order) -> None:
    fault = fault_of("gates", twin("too_many", True), 1, 32, [ints(32)], **order)
    assert fault.kind == "mbarrier" and "33 arrivals, while the phase waits for 32" in fault.what
    check_place(fault.at, "gates", "too many", "mbarrier.arrive", thread=0)
    run("gates", twin("too_many", False), 1, 32, [ints(32)], **order)
    fault = fault_of("gates", twin("completes", True), 1, 32, [ints(32)], **order)
    assert fault.kind == "mbarrier" and "completes" in fault.what
    check_place(fault.at, "gates", "completes", "mbarrier.arrive")
    run("gates", twin("completes", False), 1, 32, [ints(32)], **order)


@orders
def test_an_mbarrier_that_was_not_initialised(order: emulate.Order) -> None:
    fault = fault_of("gates", twin("not_initialised", True), 1, 32, [ints(32)], **order)
    check_place(fault.at, "gates", "arrive", "mbarrier.arrive", thread=1)
    assert (fault.kind, fault.space, fault.bytes) == ("mbarrier", "shared", 8)
    assert "no mbarrier has been initialised here" in fault.what
    run("gates", twin("not_initialised", False), 1, 32, [ints(32)], **order)


def test_an_mbarrier_initialised_twice() -> None:
    fault = fault_of("gates", twin("twice", True), 1, 32, [ints(32)])
    check_place(fault.at, "gates", "init", "mbarrier.init", thread=0)
    assert fault.kind == "mbarrier" and "initialised again" in fault.what
    run("gates", twin("twice", False), 1, 32, [ints(32)])


def test_an_ordinary_store_into_an_mbarrier() -> None:
    fault = fault_of("gates", twin("scribbled", True), 1, 32, [ints(32)])
    check_place(fault.at, "gates", "scribble", "st.shared", thread=0)
    assert fault.kind == "mbarrier" and "an ordinary access to an mbarrier" in fault.what
    run("gates", twin("scribbled", False), 1, 32, [ints(32)])


def test_a_count_of_no_arrivals() -> None:
    fault = fault_of("gates", twin("no_arrivals", True), 1, 32, [ints(32)])
    check_place(fault.at, "gates", "init", "mbarrier.init", thread=0)
    assert fault.kind == "mbarrier" and "a count of 0 arrivals" in fault.what
    run("gates", twin("no_arrivals", False), 1, 32, [ints(32)])
