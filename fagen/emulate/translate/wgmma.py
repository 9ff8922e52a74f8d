"""Products of warpgroups. Source: PTX ISA, Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions."""

from __future__ import annotations

from ..ptx.model import Immediate, Instruction, Operand, Vector
from .elements import BITS, ELEMENTS
from .emit import PAUSES, SHARED_OPERANDS, Emitter, always, translates
from .modifiers import Modifiers, refused

PAUSES["wgmma"] = always
SHARED_OPERANDS["wgmma"] = lambda i: "mma_async" in i.modifiers

# Types of A, those of B that go with it, and those of D.
_FORMS = {
    "f16": (("f16",), ("f16", "f32")),
    "bf16": (("bf16",), ("f32",)),
    "tf32": (("tf32",), ("f32",)),
    "e4m3": (("e4m3", "e5m2"), ("f16", "f32")),
    "e5m2": (("e4m3", "e5m2"), ("f16", "f32")),
    "s8": (("s8", "u8"), ("s32",)),
    "u8": (("s8", "u8"), ("s32",)),
}
_SHAPES = [f"m64n{n}k{k}" for k in (8, 16, 32) for n in range(8, 257, 8)]
# Bits of wgmma.cpp's flags.
_A_REGISTERS, _A_TRANSPOSED, _B_TRANSPOSED, _A_NEGATED, _B_NEGATED, _SATURATES = 1, 2, 4, 8, 16, 32


@translates("wgmma")
def _wgmma(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.choice("sync")
    m.choice("aligned")
    if m.flag("fence"):
        m.done()
        e.collective("fagen_wgmma_fence", "0xffffffffu", (), (), aligned=True)
    elif m.flag("commit_group"):
        m.done()
        e.collective("fagen_wgmma_commit", "0xffffffffu", (), (), aligned=True)
    elif m.flag("wait_group"):
        m.done()
        e.collective("fagen_wgmma_meet", "0xffffffffu", (), (), aligned=True)
        e.wait_for(f"call.wgmma_wait(t, {e.read(i.operands[0], 'u32')})")
    else:
        _product(e, i, m)


def _product(e: Emitter, i: Instruction, m: Modifiers) -> None:
    m.choice("mma_async")
    saturates = m.flag("satfinite")
    b, a, d = m.last(), m.last(), m.last()
    shape = m.choice(*_SHAPES)
    m.done()
    columns, depth = (int(part) for part in shape.removeprefix("m64n").split("k"))
    others, results = _FORMS.get(a, ((), ()))
    whole = d == "s32"
    if b not in others or d not in results or depth != 256 // BITS[a]:
        raise refused(i, "no such shape and types")
    if whole and columns % 16 and columns not in (8, 24):
        raise refused(i, "no such shape and types")
    count = columns // (4 if d == "f16" else 2)
    described = not isinstance(i.operands[1], Vector)
    flags = _flags(i, described, a in ("f16", "bf16"), whole) | (_SATURATES if saturates else 0)
    results_ = e.vector(i.operands[0], count)
    first: tuple[Operand, ...] = (i.operands[1],) if described else e.vector(i.operands[1], 4)
    operands: list[Operand] = [*results_, *first, i.operands[2], i.operands[3]]
    kinds = ["b32"] * count + (["b64"] if described else ["b32"] * 4) + ["b64", "pred"]
    noted = [*results_, *([] if described else first)]
    e.collective(
        "fagen_wgmma",
        "0xffffffffu",
        operands,
        kinds,
        aligned=True,
        detail=(columns | count << 16, ELEMENTS[a] | ELEMENTS[b] << 8 | ELEMENTS[d] << 16, flags),
        noted=noted,
    )


def _flags(i: Instruction, described: bool, halves: bool, whole: bool) -> int:
    """Of the constants behind scale-d: both scales, then which operands are transposed."""
    constants = []
    for operand in i.operands[4:]:
        if not isinstance(operand, Immediate):
            raise refused(i, "scales and transpositions are constants")
        constants.append(operand.bits)
    expected = 0 if whole else 2 if not halves else 4 if described else 3
    if len(constants) != expected:
        raise refused(i, f"expected {expected} constants behind scale-d")
    if any(scale not in (1, -1) for scale in constants[:2]) or any(bit not in (0, 1) for bit in constants[2:]):
        raise refused(i, "a scale is 1 or -1, a transposition 0 or 1")
    flags = 0 if described else _A_REGISTERS
    for constant, bit in zip(constants[:2], (_A_NEGATED, _B_NEGATED), strict=False):
        flags |= bit if constant == -1 else 0
    transposed = constants[2:]
    if transposed and transposed[-1]:
        flags |= _B_TRANSPOSED
    if len(transposed) == 2 and transposed[0]:
        flags |= _A_TRANSPOSED
    return flags
