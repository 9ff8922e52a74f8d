"""printf and assert of a kernel."""

from __future__ import annotations

import pytest
import torch

from .launches import check_place, fault_of, run


def test_printf(capfd: pytest.CaptureFixture[str]) -> None:
    run("output", "says", 1, 32, [7, -2.25])
    wanted = "lane 3 of 7: -2.250 1.5e+00 c 10000000000 100%\nnothing\n"
    assert capfd.readouterr().out == wanted


def test_assert() -> None:
    x = torch.arange(32, dtype=torch.int32)
    run("output", "asserts", 1, 32, [x, 32])
    fault = fault_of("output", "asserts", 1, 32, [x, 31])
    check_place(fault.at, "output", "assert", "call", thread=31)
    assert fault.kind == "trap" and "assertion `x[threadIdx.x] < n` failed at output.cu:15" in fault.what
