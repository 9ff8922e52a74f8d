"""PTX for products by wgmma of any shape, types and operands, what they are given and what they should give.

Needs nothing but Python and torch: it is used where fagen is not installed.
"""

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
PAIRS = [
    ("f16", "f16", "f16"), ("f16", "f16", "f32"), ("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"),
    *((a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f16", "f32")),
    *((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
]  # fmt: skip
_MODES = {0: 0, 128: 1, 64: 2, 32: 3}
_TEXT = """
.version 8.4
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 tile[];
.visible .entry product(.param .u64 image, .param .u64 fragments, .param .u64 out, .param .u64 at_a, .param .u64 at_b,
                        .param .u32 chunks, .param .u32 adds)
{
  .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<4>; .reg .b32 %d<128>;
  .reg .b32 %a<FRAGMENTS>; .reg .b64 %x<STEPS>; .reg .b64 %y<STEPS>;
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
  add.s32 %r4, %r4, THREADS;
  bra more;
full:
  fence.proxy.async.shared::cta;
  bar.sync 0;
  mul.wide.u32 %rd9, %r3, ROOM; add.s64 %rd9, %rd2, %rd9;
  shr.u32 %r12, %r3, 7; mul.wide.u32 %rd11, %r12, GROUP; add.s64 %rd4, %rd4, %rd11;
  TAKE
  mul.wide.u32 %rd10, %r3, STRIDE; add.s64 %rd10, %rd3, %rd10;
  LOADS
  setp.ne.b32 %p2, %r2, 0; setp.eq.b32 %p3, %r2, %r2;
  wgmma.fence.sync.aligned;
  PRODUCTS
  wgmma.commit_group.sync.aligned;
  wgmma.wait_group.sync.aligned 0;
  STORES
  ret;
}
"""


@dataclass(frozen=True)
class Form:
    """Products by one form of wgmma.mma_async: of 64 rows for each of ``groups``, of ``steps`` times 32 bytes of K.
    Swizzles are in bytes; that of A is None where A is in registers."""

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
    part: int = 0  # which 32 bytes of the swizzle's row the first step's K lies in
    groups: int = 1
    steps: int = 1

    @property
    def step(self) -> int:
        """Numbers of K that one instruction takes."""
        return 32 // BYTES[self.a]

    @property
    def k(self) -> int:
        return self.steps * self.step

    @property
    def rows(self) -> int:
        return 64 * self.groups

    @property
    def registers(self) -> int:
        return self.n // (4 if self.d == "f16" else 2)

    def part_of(self, step: int, swizzle: int) -> int:
        """Which 32 bytes of a row of that swizzle the K of a step lies in."""
        return (self.part + step) % max(swizzle // 32, 1)

    def ptx(self) -> str:
        """A kernel for it."""
        halves, whole = self.a in ("f16", "bf16"), self.d == "s32"
        constants = [] if whole else [self.a_sign, self.b_sign]
        if halves:
            constants += [int(self.a_transposed)] * (self.a_swizzle is not None) + [int(self.b_transposed)]
        names = [f"%d{n}" for n in range(self.registers)]
        takes, products = [], []
        for step in range(self.steps):
            first = f"%x{step}"
            if self.a_swizzle is None:
                first = f"{{{', '.join(f'%a{4 * step + n}' for n in range(4))}}}"
                takes.append(f"ld.global.v4.b32 {first}, [%rd9+{16 * step}];")
            else:
                ahead = _ahead(self, step, self.a_swizzle, 64, self.a_transposed)
                takes.append(f"add.s64 %x{step}, %rd4, {ahead};")
            ahead = _ahead(self, step, self.b_swizzle, self.n, self.b_transposed)
            takes.append(f"add.s64 %y{step}, %rd5, {ahead};")
            operands = [f"{{{', '.join(names)}}}", first, f"%y{step}", f"%p{3 if step else 2}", *map(str, constants)]
            shape = f"m64n{self.n}k{self.step}.{self.d}.{self.a}.{self.b}"
            products.append(f"wgmma.mma_async.sync.aligned.{shape} {', '.join(operands)};")
        group = 0
        if self.a_swizzle is not None:
            group = self.steps * image_bytes(64, self.a_swizzle, self.a_transposed) >> 4
        text = _TEXT.replace("STRIDE", str(4 * self.registers)).replace("ROOM", str(16 * self.steps))
        text = text.replace("THREADS", str(128 * self.groups)).replace("GROUP", str(group))
        text = text.replace("FRAGMENTS", str(4 * self.steps)).replace("STEPS", str(self.steps))
        text = text.replace("TAKE", "\n  ".join(takes)).replace("PRODUCTS", "\n  ".join(products))
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


def image_bytes(rows: int, swizzle: int, transposed: bool) -> int:
    """What a step's part of a matrix takes."""
    size = (rows + 63) // 64 * 64 * (32 if transposed else max(swizzle, 32))
    return (size + 1023) // 1024 * 1024


def _ahead(form: Form, step: int, swizzle: int, rows: int, transposed: bool) -> int:
    """What a step adds to the first one's descriptor."""
    offset = step * image_bytes(rows, swizzle, transposed)
    parts = [form.part_of(n, swizzle) for n in (0, step)]
    return _descriptor(offset, swizzle, transposed, parts[1]) - _descriptor(0, swizzle, transposed, parts[0])


def _image(matrix: Tensor, swizzle: int, transposed: bool, part: int) -> bytes:
    rows, depth = matrix.shape
    size = matrix.element_size()
    pattern = matrix.contiguous().view(torch.uint8).reshape(rows, depth, size).tolist()
    image = bytearray(image_bytes(rows, swizzle, transposed))
    for row in range(rows):
        for k in range(depth):
            at = _place(row, k, size, swizzle, transposed, part)
            image[at : at + size] = bytes(pattern[row][k])
    return bytes(image)


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
    """The matrix of the threads' registers, ``form.rows`` by N."""
    kind = {"f16": torch.float16, "f32": torch.float32, "s32": torch.int32}[form.d]
    values = out.view(kind).reshape(-1, 8, 4, form.n // 8, 2, 2)  # warp, g, t, eight columns, row + 8, column
    return values.permute(0, 4, 1, 3, 2, 5).reshape(form.rows, form.n)


def operands(form: Form) -> tuple[Tensor, Tensor]:
    """Small whole numbers, so that sums are exact."""
    a, b = torch.randint(-2, 3, (form.rows, form.k)), torch.randint(-2, 3, (form.n, form.k))
    return a.abs() if form.a == "u8" else a, b.abs() if form.b == "u8" else b


def arguments(form: Form, a: Tensor, b: Tensor, start: Tensor, adds: bool) -> tuple[list[Any], int]:
    """What to launch it with, and its bytes of shared memory; the result is left in ``start``."""
    first, second = a.to(TYPES[form.a]), b.to(TYPES[form.b])
    image = b""
    steps = [slice(form.step * n, form.step * (n + 1)) for n in range(form.steps)]
    groups = [slice(64 * n, 64 * (n + 1)) for n in range(form.groups)]
    at_a = 0
    if form.a_swizzle is not None:
        parts = [form.part_of(n, form.a_swizzle) for n in range(form.steps)]
        at_a = _descriptor(0, form.a_swizzle, form.a_transposed, parts[0])
        for rows in groups:
            for k, part in zip(steps, parts, strict=True):
                image += _image(first[rows, k], form.a_swizzle, form.a_transposed, part)
    parts = [form.part_of(n, form.b_swizzle) for n in range(form.steps)]
    at_b = _descriptor(len(image), form.b_swizzle, form.b_transposed, parts[0])
    for k, part in zip(steps, parts, strict=True):
        image += _image(second[:, k], form.b_swizzle, form.b_transposed, part)
    given = torch.frombuffer(bytearray(image), dtype=torch.uint8)
    fragments = torch.stack([torch.stack([_fragments(first[rows, k]) for k in steps], 1) for rows in groups])
    return [given, fragments, start, at_a, at_b, len(image) // 16, int(adds)], len(image)


def whole(types: tuple[str, str, str]) -> list[Form]:
    """Products of 128 by 128 by 64 in every form of operands that the types have."""
    a, b, d = types
    steps = 64 * BYTES[a] // 32
    swizzle = 64 if a == "tf32" else 128  # as fits into shared memory
    found = [Form(128, a, b, d, first, swizzle, groups=2, steps=steps) for first in (swizzle, None)]
    if a in ("f16", "bf16"):
        found += [
            Form(128, a, b, d, swizzle, swizzle, a_transposed, b_transposed, groups=2, steps=steps)
            for a_transposed, b_transposed in ((False, True), (True, False), (True, True))
        ]
        found.append(Form(128, a, b, d, None, swizzle, b_transposed=True, groups=2, steps=steps))
    return found
