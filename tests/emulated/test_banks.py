"""Conflicts of banks are counted as cards have them, and the kernels' products have none."""

from __future__ import annotations

import pytest
import torch
from mutation.cuda.subjects import SUBJECTS, Called
from mutation.cuda.trial import original

from fagen import emulate
from fagen.emulate.compile import load
from fagen.errors import ToolchainError
from fagen.runtime.check.call import forward

_KERNEL = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry touch(.param .u64 places) {{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .shared .align 128 .b8 memory[8192];
  ld.param.u64 %rd1, [places];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.u32 %r2, [%rd1];
  mov.u32 %r3, memory;
  add.u32 %r2, %r2, %r3;
  {store};
  ret;
}}
"""
_STORES = {
    2: "st.shared.b16 [%r2], 0",
    4: "st.shared.b32 [%r2], %r1",
    8: "st.shared.v2.b32 [%r2], {%r1, %r1}",
    16: "st.shared.v4.b32 [%r2], {%r1, %r1, %r1, %r1}",
}


def _conflicts(bytes_of_a_lane: int, places: list[int]) -> int:
    text = _KERNEL.format(store=_STORES[bytes_of_a_lane])
    places_of = torch.tensor(places, dtype=torch.int32)
    done = emulate.launch(text, "touch", 1, len(places), [emulate.readonly(places_of)], checks=False, banks=True)
    return sum(done.conflicts.values())


@pytest.mark.parametrize(
    ("width", "places", "expected"),
    [
        (4, [4 * n for n in range(32)], 0),
        (4, [8 * n for n in range(32)], 1),
        (4, [128 * n for n in range(32)], 31),
        (4, [132 * n for n in range(32)], 0),
        (4, [0] * 32, 0),  # one word for all
        (2, [2 * n for n in range(32)], 0),  # two lanes a word
        (8, [8 * n for n in range(32)], 0),  # half a warp at a time
        (8, [128 * n for n in range(32)], 30),
        (16, [16 * n for n in range(32)], 0),  # a quarter at a time
        (16, [128 * n for n in range(32)], 28),
        (16, [128 * n + 16 * (n % 8) for n in range(32)], 0),  # swizzled
        (16, [128 * n + 16 * (n % 4) for n in range(32)], 4),
        (16, [144 * n for n in range(32)], 0),  # padded
        (4, [128 * n for n in range(3)], 2),  # lanes that are there
    ],
)
def test_conflicts_are_those_of_parts_of_128_bytes(width: int, places: list[int], expected: int) -> None:
    assert _conflicts(width, places) == expected


def test_conflicts_are_counted_only_if_asked_for() -> None:
    places = emulate.readonly(torch.arange(0, 4096, 128, dtype=torch.int32))
    assert emulate.launch(_KERNEL.format(store=_STORES[4]), "touch", 1, 32, [places]).conflicts == {}


@pytest.mark.parametrize("name", SUBJECTS)
def test_products_have_no_conflicts_of_banks(name: str) -> None:
    subject = SUBJECTS[name]
    try:
        ptx = original(subject)
    except ToolchainError as error:
        pytest.skip(f"kernels are compiled to PTX by nvcc: {error}")
    called = Called(subject, load(ptx))
    called.banks = True
    inputs, _ = subject.prepared(subject.cases[0])
    forward(called, subject.cases[0], inputs)
    lines = ptx.splitlines()
    where = [lines[line - 1].strip() for line in called.conflicts]
    assert not [line for line in where if subject.swizzled or "ldmatrix" in line]
    assert any("ldmatrix" in line for line in lines)
