"""Launches of the kernels in kernels/, and what is held of the faults they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, int32, zeros

from fagen import emulate
from fagen.emulate import At, Fault

from .compiled import line_of, ptx_of

FEW = emulate.orders(seeds=2)  # for what does not hang on the order


def ints(*sizes: int) -> Tensor:
    """Zeros of int32."""
    return zeros(sizes, dtype=int32)


def run(file: str, kernel: str, grid: int, block: int, args: Sequence[Any], **more: Any) -> emulate.Statistics:
    """One launch."""
    return emulate.launch(ptx_of(file), kernel, grid, block, args, **more)


def fault_of(file: str, kernel: str, grid: int, block: int, args: Sequence[Any], **more: Any) -> Fault:
    """The fault that a launch has."""
    with pytest.raises(Fault) as caught:
        run(file, kernel, grid, block, args, **more)
    return caught.value


def twin(name: str, faulty: bool) -> str:
    """A part of the mangled name of an instance of `template <bool kFaulty> ... name`."""
    return f"{len(name)}{name}ILb{int(faulty)}E"


def check_place(at: At | None, file: str, mark: str, opcode: str, thread: int | None = None, block: int = 0) -> None:
    """That an instruction of ``opcode`` is said to be where the source has the comment ``mark``."""
    assert at is not None
    assert at.text.startswith((opcode, "@")) and f" {opcode}" in f" {at.text}", at
    assert line_of(file, mark) in (at.source, *at.inlined), at
    assert len(at.inlined) <= 3, at
    line = ptx_of(file).read_text().split("\n")[at.line - 1]
    assert at.text.split()[0] in line, at
    assert at.block == (block, 0, 0), at
    if thread is not None:
        assert at.thread == (thread, 0, 0), at


def check_race(fault: Fault, file: str, *ends: tuple[str, str, int | None, int]) -> None:
    """That a race is between two accesses, in whichever order: (mark, opcode, thread, block) of each."""
    assert fault.kind == "race", fault
    assert fault.at is not None and fault.other is not None
    found = [fault.at, fault.other]
    for mark, opcode, thread, block in ends:
        place = line_of(file, mark)
        here = [at for at in found if place in (at.source, *at.inlined) and at.block == (block, 0, 0)]
        assert here, f"nothing at {place} in block {block}: {fault}"
        check_place(here[0], file, mark, opcode, thread, block)
        found.remove(here[0])
    assert "nothing orders" in str(fault)
