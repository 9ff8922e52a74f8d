"""Accesses that nothing orders are found in every order of threads, and those that something orders are not."""

# ruff: noqa: E501  a table in lines as long as they are

from __future__ import annotations

from typing import Any

import pytest
import torch

from fagen import emulate

from .launches import check_race, fault_of, ints, run, twin

ORDERS = emulate.orders(seeds=3)
orders = pytest.mark.parametrize("order", ORDERS, ids=lambda order: f"{order['completions']}{order['seed']}")


def flagged() -> list[Any]:
    """Data, a flag, what is read."""
    return [ints(4), ints(1), ints(4)]


# Kernel, blocks, threads, arguments, and both ends of the race: mark, opcode, thread, block.
CASES: list[tuple[str, int, int, Any, tuple[Any, Any]]] = [
    ("shared_race", 1, 64, lambda: [ints(4)], (("shared write", "st.shared", 5, 0), ("shared read", "ld.shared", 40, 0))),
    ("warp_race", 1, 32, lambda: [ints(4)], (("warp write", "st.shared", 17, 0), ("warp read", "ld.shared", 3, 0))),
    ("shuffle_race", 1, 32, lambda: [ints(4)], (("shuffle write", "st.shared", 9, 0), ("shuffle read", "ld.shared", 8, 0))),
    ("global_race", 1, 64, lambda: [ints(4), ints(4)], (("global write", "st.global", 33, 0), ("global read", "ld.global", 1, 0))),
    ("block_race", 2, 32, lambda: [ints(8)], (("block write", "st.global", 9, 0), ("block write", "st.global", 9, 1))),
    ("mixed_race", 2, 1, lambda: [ints(4)], (("mixed add", "atom.global.add", 0, 0), ("mixed read", "ld.global", 0, 1))),
    ("unfenced_write", 2, 1, flagged, (("unfenced write", "st.global", 0, 0), ("unfenced read", "ld.global", 0, 1))),
    ("unfenced_read", 2, 1, flagged, (("before the flag", "st.global", 0, 0), ("after the flag", "ld.global", 0, 1))),
    ("narrow_fence", 2, 1, flagged, (("narrow fence write", "st.global", 0, 0), ("narrow fence read", "ld.global", 0, 1))),
    ("narrow_release", 2, 1, flagged, (("narrow release", "red.release.cta", 0, 0), ("wide acquire", "ld.acquire", 0, 1))),
    ("narrow_atomic", 2, 32, lambda: [ints(4)], (("narrow atomic", "atom.global.cta.add", 2, 0), ("narrow atomic", "atom.global.cta.add", 2, 1))),
    ("last_block", 3, 64, lambda: [torch.zeros(3), ints(1), torch.zeros(1)], ()),
]  # fmt: skip


@orders
@pytest.mark.parametrize(("name", "grid", "block", "args", "ends"), CASES, ids=[case[0] for case in CASES])
def test_a_race_is_found(name: str, grid: int, block: int, args: Any, ends: Any, order: emulate.Order) -> None:
    fault = fault_of("races", twin(name, True), grid, block, args(), **order)
    if name == "last_block":  # which blocks it is between hangs on who comes last
        assert fault.kind == "race"
        assert fault.at is not None and fault.other is not None and fault.at.block != fault.other.block
        assert {fault.at.thread[0], fault.other.thread[0]} == {0, 6}
        return
    check_race(fault, "races", *ends)
    assert fault.bytes == 4


@orders
@pytest.mark.parametrize(("name", "grid", "block", "args", "ends"), CASES, ids=[case[0] for case in CASES])
def test_its_twin_is_silent(name: str, grid: int, block: int, args: Any, ends: Any, order: emulate.Order) -> None:
    given = args()
    run("races", twin(name, False), grid, block, given, **order)
    if name == "last_block":
        assert given[2].item() == 1 + 2 + 3


def test_a_report_says_all_of_it() -> None:
    data, out = ints(4), ints(4)
    fault = fault_of("races", twin("global_race", True), 1, 64, [data, out], seed=1)
    assert fault.space == "global"
    assert fault.address == data.data_ptr() + 8
    first, memory, at, other = str(fault).split("\n")
    assert first.startswith("race: a") and "that nothing orders, in _Z11global_race" in first
    assert memory == f"  global memory at {fault.address:#x}, 4 bytes"
    ends = {line.strip().removeprefix("and ").split(",")[0] for line in (at, other)}
    assert ends == {"block (0) thread (33)", "block (0) thread (1)"}
    assert all("(races.cu:" in line and "PTX line " in line for line in (at, other))


def test_without_checks_nothing_is_looked_for() -> None:
    run("races", twin("global_race", True), 1, 64, [ints(4), ints(4)], checks=False)
