"""Comparison and selection. Source: PTX ISA, Comparison and Selection; Half Precision Comparison Instructions."""

from __future__ import annotations

from ..ptx.model import Instruction, Pair
from ..ptx.parse import type_bytes
from .emit import Emitter, translates
from .floats import is_float
from .modifiers import Modifiers, refused
from .operands import UNSIGNED

_COMPARE = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}


def _comparison(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> str:
    a, b = i.operands[1:3]
    if kind in ("f16x2", "bf16x2"):
        raise refused(i, "a comparison of pairs gives two predicates")
    if is_float(kind):
        how = m.choice(*(x + y for x in ("eq", "ne", "lt", "le", "gt", "ge") for y in ("", "u")), "num", "nan")
        flush = m.flag("ftz")
        if kind in ("f16", "bf16"):
            form = "Half" if kind == "f16" else "Bfloat"
            x, y = (f"{form}::value({f'flush16<{form}>' if flush else ''}({e.read(each, 'b16')}))" for each in (a, b))
        else:
            x, y = (f"flushed({e.read(each, kind)})" if flush else e.read(each, kind) for each in (a, b))
        unordered = f"({x} != {x} || {y} != {y})"
        if how in ("num", "nan"):
            return f"!{unordered}" if how == "num" else unordered
        if how.endswith("u"):
            return f"({unordered} || {x} {_COMPARE[how[:-1]]} {y})"
        # C++'s != is true of NaN, PTX's is not
        return f"(!{unordered} && {x} {_COMPARE[how]} {y})"
    how = m.choice(*_COMPARE)
    return f"({e.read(a, kind)} {_COMPARE[how]} {e.read(b, kind)})"


@translates("setp", "set")
def _setp(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    result = m.last() if i.opcode == "set" else "pred"
    combine = m.choice("and", "or", "xor", default="")
    sign = {"and": "&&", "or": "||", "xor": "!="}.get(combine, "")
    third = e.read(i.operands[3], "pred") if combine else ""
    first = i.operands[0]
    if kind in ("f16x2", "bf16x2"):
        _setp_pair(e, i, m, kind, result, sign, third)
        return
    test = _comparison(e, i, m, kind)
    m.done()
    if i.opcode == "set":
        value = f"({test} {sign} {third})" if combine else test
        if is_float(result):
            one = {"f32": "1.0f", "f16": "u16(0x3c00)", "bf16": "u16(0x3f80)"}[result]
            zero = "0.0f" if result == "f32" else "u16(0)"
            e.write(first, f"({value} ? {one} : {zero})", result if result == "f32" else "b16")
        else:
            e.write(
                first, f"({value} ? {UNSIGNED[type_bytes(result)]}(-1) : {UNSIGNED[type_bytes(result)]}(0))", result
            )
        return
    if isinstance(first, Pair):
        # The second is of the negated comparison.
        e.line(f"{{ const bool c = {test};")
        with_third = f" {sign} {third}" if combine else ""
        e.line(f"const bool x = c{with_third}, y = !c{with_third};")
        e.write(first.first, "x", "pred")
        e.write(first.second, "y", "pred")
        e.line("}")
    else:
        e.write(first, f"({test} {sign} {third})" if combine else test, "pred")


def _setp_pair(e: Emitter, i: Instruction, m: Modifiers, kind: str, result: str, sign: str, third: str) -> None:
    form = "Half" if kind == "f16x2" else "Bfloat"
    how = m.choice(*(x + y for x in ("eq", "ne", "lt", "le", "gt", "ge") for y in ("", "u")), "num", "nan")
    flush = m.flag("ftz")
    m.done()
    a, b = (e.read(operand, "b32") for operand in i.operands[1:3])
    tests = []
    for shift in (0, 16):
        x, y = (f"{form}::value({f'flush16<{form}>' if flush else ''}(u16({each} >> {shift})))" for each in (a, b))
        unordered = f"({x} != {x} || {y} != {y})"
        if how in ("num", "nan"):
            test = f"!{unordered}" if how == "num" else unordered
        elif how.endswith("u"):
            test = f"({unordered} || {x} {_COMPARE[how[:-1]]} {y})"
        else:
            test = f"(!{unordered} && {x} {_COMPARE[how]} {y})"
        tests.append(f"({test} {sign} {third})" if sign else test)
    first = i.operands[0]
    if i.opcode == "setp":
        if not isinstance(first, Pair):
            raise refused(i, "expected p|q")
        e.line(f"{{ const bool x = {tests[0]}, y = {tests[1]};")
        e.write(first.first, "x", "pred")
        e.write(first.second, "y", "pred")
        e.line("}")
        return
    one = {"f16x2": "0x3c00u", "bf16x2": "0x3f80u"}.get(result, "0xffffu")
    e.write(first, f"(({tests[0]} ? {one} : 0u) | ({tests[1]} ? {one} : 0u) << 16)", "b32")


@translates("selp")
def _selp(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = "b" + str(8 * type_bytes(m.last()))
    m.done()
    a, b = (e.pattern(operand, i.modifiers[-1]) for operand in i.operands[1:3])
    e.write(i.operands[0], f"({e.read(i.operands[3], 'pred')} ? {a} : {b})", kind)


@translates("slct")
def _slct(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    test, kind, flush = m.last(), m.last(), m.flag("ftz")
    m.done()
    a, b = (e.pattern(operand, kind) for operand in i.operands[1:3])
    c = e.read(i.operands[3], test)
    if test == "f32" and flush:
        c = f"flushed({c})"
    e.write(i.operands[0], f"({c} >= 0 ? {a} : {b})", f"b{8 * type_bytes(kind)}")
