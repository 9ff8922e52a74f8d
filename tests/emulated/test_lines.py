"""Which lines ran: as a launch counts them in the PTX, and as a module's kernels are judged by their source."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fagen.emulate.driver import Emulator

from .compiled import FOLDER, ptx_of
from .launches import run

SOURCE = (FOLDER / "lines.cu").read_text().splitlines()
LANES, SOME = 32, 8


@pytest.fixture
def emulator(tmp_path: Path) -> Emulator:
    """Of a module that has lines.cu for its only kernel."""
    (tmp_path / "ptx").mkdir()
    shutil.copy(ptx_of("lines"), tmp_path / "ptx")
    return Emulator(tmp_path)


def marked(kernel: str) -> dict[int, int]:
    """How often the marked lines of a kernel are to run."""
    start = next(n for n, line in enumerate(SOURCE) if f" {kernel}(" in line)
    end = next(n for n in range(start, len(SOURCE)) if SOURCE[n] == "}")
    counts = {"most": LANES, "n": SOME, "never": 0}
    found = {}
    for n in range(start, end):
        if match := re.search(r"// (most|n|never)$", SOURCE[n]):
            found[n + 1] = counts[match[1]]
    return found


@pytest.mark.parametrize("kernel", ["branches", "inlined"])
def test_lines_of_a_source(kernel: str, emulator: Emulator) -> None:
    emulator.executed["lines"] = run("lines", kernel, 1, LANES, [torch.ones(LANES), SOME]).executed
    counts = emulator.lines("lines")
    wanted = marked(kernel)
    assert {line: counts.get(line) for line in wanted} == wanted
    assert 0 in wanted.values()


def test_lines_of_kernels_that_were_not_launched_count_as_well(emulator: Emulator) -> None:
    assert set(emulator.lines("lines").values()) == {0}
    assert {*marked("branches"), *marked("inlined")} <= set(emulator.lines("lines"))


BRANCH_ALONE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry f(.param .u32 n) {
  .reg .pred %p<2>;
  .reg .b32 %r<2>;
  .loc 1 5 0
  ld.param.u32 %r1, [n];
  setp.eq.u32 %p1, %r1, 0;
  .loc 1 6 0
  @%p1 bra $L_end;
  .loc 1 7 0
  bar.sync 0;
$L_end:
  ret;
}
.file 1 "branch.cu"
"""


def test_a_line_that_is_but_a_branch_is_not_counted(emulator: Emulator) -> None:
    (emulator.folder / "ptx" / "branch.ptx").write_text(BRANCH_ALONE)
    assert emulator.lines("branch") == {5: 0, 7: 0}


def test_what_follows_a_branch_and_what_has_a_predicate_is_counted_apart() -> None:
    text = ptx_of("lines").read_text().splitlines()

    def executed(kernel: str, args: list[Any], opcode: str) -> list[int]:
        counts = run("lines", kernel, 1, LANES, args, checks=False).executed
        return [count for line, count in counts.items() if re.match(rf"\s*(@!?%?\w+\s+)?{opcode}", text[line - 1])]

    out = torch.zeros(LANES, dtype=torch.int32)
    assert executed("predicated", [out, SOME], "st.global") == [0]
    assert executed("predicated", [out, 200], "st.global") == [LANES]
    assert executed("predicated", [out, SOME], "red.global") == [LANES]
    # A branch is carried out by all who come to it: those who take it, and those who do not.
    assert executed("branches", [torch.zeros(LANES), SOME], "bra")[0] == LANES
