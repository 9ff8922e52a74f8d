"""What the system offers kernels by calls: printf and assert. Source: CUDA C++ Programming Guide, Formatted Output."""

from __future__ import annotations

from ..ptx.model import Instruction, Operand
from .emit import Emitter, translates
from .modifiers import refused


def _offset(e: Emitter, i: Instruction, operand: Operand) -> int:
    place = e.frame(operand)
    if place is None or place[0] != "frame":
        raise refused(i, "arguments are parameters of the call")
    return place[1]


def _loaded(e: Emitter, i: Instruction, operands: tuple[Operand, ...]) -> None:
    """Arguments as `a[n]`."""
    e.line(f"u64 a[{len(operands)}] = {{}};")
    for n, operand in enumerate(operands):
        name = e.kernel.places[operand.base.name]  # type: ignore[union-attr]
        e.line(f"std::memcpy(a + {n}, t.local + {_offset(e, i, operand)}, {name.bytes});")


@translates("vprintf")
def _print(e: Emitter, i: Instruction) -> None:
    result, *arguments = i.operands
    e.here()
    e.line("{")
    _loaded(e, i, tuple(arguments))
    e.line(
        f"const s32 printed = call.print(t, a[0], a[1]); std::memcpy(t.local + {_offset(e, i, result)}, &printed, 4);"
    )
    e.line("}")


@translates("__assertfail")
def _assert(e: Emitter, i: Instruction) -> None:
    e.here()
    e.line("{")
    _loaded(e, i, i.operands)
    e.line("call.assert_failed(t, a[0], a[1], static_cast<u32>(a[2])); }")
