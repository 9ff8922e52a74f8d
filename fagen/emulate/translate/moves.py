"""mov, and what tells and changes the state space of an address. Source: PTX ISA, Data Movement and Conversion."""

from __future__ import annotations

from ..ptx.model import Immediate, Instruction, Register, Symbol, Vector
from ..ptx.parse import type_bytes
from .emit import Emitter, translates
from .modifiers import Modifiers, refused
from .operands import UNSIGNED


@translates("mov")
def _mov(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.done()
    to, value = i.operands
    if kind == "pred":
        e.write(to, e.read(value, "pred"), "pred")
        return
    size = type_bytes(kind)
    untyped = f"b{8 * size}"
    if isinstance(value, Vector):  # packs
        part = size // len(value.items)
        pieces = [
            f"{UNSIGNED[size]}({e.read(item, f'b{8 * part}')}) << {8 * part * n}" for n, item in enumerate(value.items)
        ]
        e.write(to, "(" + " | ".join(pieces) + ")", untyped)
    elif isinstance(to, Vector):  # unpacks
        part = size // len(to.items)
        e.line(f"{{ const {UNSIGNED[size]} x = {e.read(value, untyped)};")
        for n, item in enumerate(to.items):
            e.write(item, f"{UNSIGNED[part]}(x >> {8 * part * n})", f"b{8 * part}")
        e.line("}")
    elif isinstance(value, Symbol | Register | Immediate):
        e.write(to, e.pattern(value, kind), untyped)
    else:
        raise refused(i, "this form is not built")


@translates("isspacep")
def _isspacep(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    space = m.choice("const", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry")
    m.done()
    a = e.read(i.operands[1], "u64")
    name = space.split("::")[0]
    windows = {"shared": "kSharedWindow", "local": "kLocalWindow", "param": "kParamWindow"}
    test = (
        f"({a} >> 56 == {windows[name]} >> 56)"
        if name in windows
        else "false"
        if name == "const"
        else f"({a} >> 56 == 0)"
    )
    e.write(i.operands[0], test, "pred")


@translates("cvta")
def _cvta(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    back = m.flag("to")
    space = m.choice(
        "const", "global", "local", "shared", "shared::cta", "shared::cluster", "param", "param::entry"
    ).split("::")[0]
    m.done()
    a = e.read(i.operands[1], "u64")
    window = {"shared": "kSharedWindow", "local": "kLocalWindow", "param": "kParamWindow"}.get(space)
    if window is not None:
        a = f"({a} - {window})" if back else f"({a} + {window})"
    e.write(i.operands[0], a, kind)


@translates("nop")
def _nop(e: Emitter, i: Instruction) -> None:
    del e, i
