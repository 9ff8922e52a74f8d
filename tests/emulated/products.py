"""PTX for one wgmma of any shape, types and operands, what it is given and what it should give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

TYPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2, "s8": torch.int8, "u8": torch.uint8,
}  # fmt: skip
BYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_TEXT = """
.version 8.3
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tile[];
.visible .entry product(.param .u64 image, .param .u64 fragments, .param .u64 out, .param .u64 at_a, .param .u64 at_b,
                        .param .u32 chunks, .param .u32 adds)
{
  .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<4>; .reg .b32 %a<4>; .reg .b32 %d<128>;
  ld.param.u64 %rd1, [image]; ld.param.u64 %rd2, [fragments]; ld.param.u64 %rd3, [out];
  ld.param.u64 %rd4, [at_a]; ld.param.u64 %rd5, [at_b]; ld.param.u32 %r1, [chunks]; ld.param.u32 %r2, [adds];
  mov.u32 %r3, %tid.x; mov.u32 %r4, %r3; mov.u32 %r5, tile;
  shr.u32 %r6, %r5, 4; cvt.u64.u32 %rd6, %r6; add.s64 %rd4, %rd4, %rd6; add.s64 %rd5, %rd5, %rd6;
more:
  setp.ge.u32 %p1, %r4, %r1;
  @%p1 bra full;
  mul.wide.u32 %rd7, %r4, 16; add.s64 %rd8, %rd1, %rd7;
  shl.b32 %r7, %r4, 4; add.s32 %r7, %r7, %r5;
  ld.global.v4.b32 {%r8, %r9, %r10, %r11}, [%rd8];
  st.shared.v4.b32 [%r7], {%r8, %r9, %r10, %r11};
  add.s32 %r4, %r4, 128;
  bra more;
full:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mul.wide.u32 %rd9, %r3, 16; add.s64 %rd9, %rd2, %rd9;
  ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%rd9];
  mul.wide.u32 %rd10, %r3, STRIDE; add.s64 %rd10, %rd3, %rd10;
  LOADS
  setp.ne.b32 %p2, %r2, 0;
  wgmma.fence.sync.aligned;
  wgmma.mma_async.sync.aligned.SHAPE {REGISTERS}, FIRST, %rd5, %p2CONSTANTS;
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  STORES
  ret;
}
"""


@dataclass(frozen=True)
class Form:
    """One form of wgmma.mma_async. Swizzles are in bytes; that of A is None where A is in registers."""

    n: int
    a: str
    b: str
    d: str
    a_swizzle: int | None = 128
    b_swizzle: int = 128
    a_transposed: bool = False
    b_transposed: bool = False
    a_sign: int = 1
    b_sign: int = 1
    part: int = 0  # which 32 bytes of the swizzle's row K lies in

    @property
    def k(self) -> int:
        return 32 // BYTES[self.a]

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    def ptx(self) -> str:
        """A kernel for it."""
        halves, whole = self.a in ("f16", "bf16"), self.d == "s32"
        constants = [] if whole else [self.a_sign, self.b_sign]
        if halves:
            constants += [int(self.a_transposed)] * (self.a_swizzle is not None) + [int(self.b_transposed)]
        names = [f"%d{n}" for n in range(self.registers)]
        text = _TEXT.replace("SHAPE", f"m64n{self.n}k{self.k}.{self.d}.{self.a}.{self.b}")
        text = text.replace("STRIDE", str(4 * self.registers)).replace("REGISTERS", ", ".join(names))
        text = text.replace("FIRST", "%rd4" if self.a_swizzle is not None else "{%a0, %a1, %a2, %a3}")
        text = text.replace("CONSTANTS", "".join(f", {each}" for each in constants))
        text = text.replace("LOADS", " ".join(f"ld.global.b32 {d}, [%rd10+{4 * n}];" for n, d in enumerate(names)))
        return text.replace("STORES", " ".join(f"st.global.b32 [%rd10+{4 * n}], {d};" for n, d in enumerate(names)))


def _place(row: int, k: int, bytes: int, swizzle: int, transposed: bool, part: int) -> int:
    """Where an element lies, in canonical layouts without gaps, K being 32 bytes long."""
    along = k * bytes
    if not swizzle:
        if transposed:
            return row // 8 * 256 + row % 8 * 2 + k % 8 * 16 + k // 8 * 128
        return row // 8 * 256 + row % 8 * 16 + along // 16 * 128 + along % 16
    if transposed:
        width = swizzle // 2
        at = row // width * 16 * swizzle + row % width * 2 + k % 8 * swizzle + k // 8 * 8 * swizzle
    else:
        at = row // 8 * 8 * swizzle + row % 8 * swizzle + 32 * part + along
    return at ^ (at // 128 % 8 & (swizzle // 16 - 1)) << 4


def _descriptor(offset: int, swizzle: int, transposed: bool, part: int) -> int:
    leading, stride = (128, 256) if not swizzle else (16 * swizzle, 8 * swizzle)
    start = offset + (32 * part if swizzle and not transposed else 0)
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | _MODES[swizzle] << 62


def _image(matrix: Tensor, swizzle: int, transposed: bool, part: int) -> bytes:
    rows, depth = matrix.shape
    size = matrix.element_size()
    pattern = matrix.contiguous().view(torch.uint8).reshape(rows, depth, size).tolist()
    image = bytearray((rows + 63) // 64 * 64 * max(swizzle, 32) * (2 if transposed else 1))
    for row in range(rows):
        for k in range(depth):
            at = _place(row, k, size, swizzle, transposed, part)
            image[at : at + size] = bytes(pattern[row][k])
    return bytes(image) + bytes(-len(image) % 1024)


def _fragments(matrix: Tensor) -> Tensor:
    """A's four registers of each of 128 threads, as bytes."""
    size = matrix.element_size()
    each = 4 // size
    out = torch.zeros(128, 4, 4, dtype=torch.uint8)
    pattern = matrix.contiguous().view(torch.uint8).reshape(64, -1)
    for thread in range(128):
        g, t = thread % 32 // 4, thread % 4
        for r in range(4):
            row, k = thread // 32 * 16 + g + 8 * (r % 2), each * (4 * (r // 2) + t)
            out[thread, r] = pattern[row, k * size : k * size + 4]
    return out


def accumulators(form: Form, out: Tensor) -> Tensor:
    """The 64 by N matrix of the threads' registers."""
    kind = {"f16": torch.float16, "f32": torch.float32, "s32": torch.int32}[form.d]
    values = out.view(kind).reshape(4, 8, 4, form.n // 8, 2, 2)  # warp, g, t, eight columns, row + 8, column
    return values.permute(0, 4, 1, 3, 2, 5).reshape(64, form.n)


def operands(form: Form) -> tuple[Tensor, Tensor]:
    """Small whole numbers, so that sums are exact."""
    a, b = torch.randint(-2, 3, (64, form.k)), torch.randint(-2, 3, (form.n, form.k))
    return a.abs() if form.a == "u8" else a, b.abs() if form.b == "u8" else b


def arguments(form: Form, a: Tensor, b: Tensor, start: Tensor, adds: bool) -> tuple[list[Any], int]:
    """What to launch it with, and its bytes of shared memory; the result is left in ``start``."""
    first, second = a.to(TYPES[form.a]), b.to(TYPES[form.b])
    image = b"" if form.a_swizzle is None else _image(first, form.a_swizzle, form.a_transposed, form.part)
    at_b = len(image)
    image += _image(second, form.b_swizzle, form.b_transposed, form.part)
    at_a = 0 if form.a_swizzle is None else _descriptor(0, form.a_swizzle, form.a_transposed, form.part)
    given = torch.frombuffer(bytearray(image), dtype=torch.uint8)
    at = _descriptor(at_b, form.b_swizzle, form.b_transposed, form.part)
    return [given, _fragments(first), start, at_a, at, len(image) // 16, int(adds)], len(image)
