"""Integer, logic and shift instructions. Source: PTX ISA, Integer Arithmetic; Extended-Precision Integer Arithmetic;
Logic and Shift Instructions."""

from __future__ import annotations

from ..ptx.model import Instruction, Pair
from ..ptx.parse import type_bytes
from .emit import Emitter, translates
from .floats import float_arithmetic, is_float
from .modifiers import Modifiers, refused
from .operands import UNSIGNED


def _cpp(kind: str) -> str:
    """The C++ type of an integer or untyped PTX type."""
    return f"{'s' if kind.startswith('s') else 'u'}{8 * type_bytes(kind)}"


def _each16(e: Emitter, i: Instruction, m: Modifiers, name: str, kind: str) -> bool:
    """Two 16-bit integers in 32 bits (u16x2, s16x2): add, min, max."""
    if kind not in ("u16x2", "s16x2"):
        return False
    t = "s16" if kind[0] == "s" else "u16"
    a, b = (e.read(operand, "u32") for operand in i.operands[1:3])
    body = f"{name}<{t}>(static_cast<{t}>(x), static_cast<{t}>(y))"
    if m.flag("relu"):
        body = f"larger<s16>({body}, 0)"
    body = f"static_cast<u16>({body})"
    e.write(i.operands[0], f"each_half({a}, {b}, [](u16 x, u16 y) {{ return {body}; }})", "u32")
    return True


@translates("add", "sub")
def _add(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if is_float(kind):
        float_arithmetic(e, i)
        return
    if m.flag("cc"):
        _carry(e, i, kind, carry_in=False, sets=True)
    elif m.flag("sat"):
        a, b = (e.read(operand, "s32") for operand in i.operands[1:])
        e.write(i.operands[0], f"{i.opcode}_sat({a}, {b})", "s32")
    elif not _each16(e, i, m, i.opcode, kind):
        a, b = (e.read(operand, kind) for operand in i.operands[1:])
        e.write(i.operands[0], f"{i.opcode}<{_cpp(kind)}>({a}, {b})", kind)
    m.done()


@translates("addc", "subc")
def _addc(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind, sets = m.last(), m.flag("cc")
    m.done()
    _carry(e, i, kind, carry_in=True, sets=sets)


def _carry(e: Emitter, i: Instruction, kind: str, *, carry_in: bool, sets: bool) -> None:
    unsigned = UNSIGNED[type_bytes(kind)]
    name = "add_carry" if i.opcode.startswith("add") else "sub_borrow"
    a, b = (e.read(operand, f"b{8 * type_bytes(kind)}") for operand in i.operands[1:])
    taken = e.carry() if carry_in else "false"
    _write_over(e, i, kind, f"{name}<{unsigned}>({a}, {b}, {taken}, over)", sets=sets)


def _write_over(e: Emitter, i: Instruction, kind: str, value: str, *, sets: bool) -> None:
    """Writes ``value``, an expression that leaves its carry in ``over``, which becomes the thread's if it ``sets``."""
    e.line(f"{{ bool over; const {UNSIGNED[type_bytes(kind)]} x = {value};")
    if sets:
        e.line(f"{e.carry()} = over;")
    e.write(i.operands[0], "x", f"b{8 * type_bytes(kind)}")
    e.line("}")


@translates("mul", "mad")
def _mul(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if is_float(kind):
        float_arithmetic(e, i)
        return
    part = m.choice("lo", "hi", "wide", default="lo")
    cc, sat = m.flag("cc"), m.flag("sat")
    m.done()
    t = _cpp(kind)
    a, b = (e.read(operand, kind) for operand in i.operands[1:3])
    result = kind if part != "wide" else f"{kind[0]}{16 * type_bytes(kind)}"
    product = f"mul_{part}<{t}>({a}, {b})"
    if i.opcode == "mul":
        e.write(i.operands[0], product, result)
        return
    c = e.read(i.operands[3], result)
    if cc:
        unsigned = UNSIGNED[type_bytes(result)]
        added = f"add_carry<{unsigned}>({unsigned}({product}), {unsigned}({c}), false, over)"
        _write_over(e, i, result, added, sets=True)
    elif sat:
        e.write(i.operands[0], f"add_sat({product}, {c})", result)
    else:
        e.write(i.operands[0], f"add<{_cpp(result)}>({product}, {c})", result)


@translates("madc")
def _madc(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind, part, sets = m.last(), m.choice("lo", "hi"), m.flag("cc")
    m.done()
    unsigned = UNSIGNED[type_bytes(kind)]
    a, b, c = (e.read(operand, kind) for operand in i.operands[1:])
    product = f"{unsigned}(mul_{part}<{_cpp(kind)}>({a}, {b}))"
    added = f"add_carry<{unsigned}>({product}, {unsigned}({c}), {e.carry()}, over)"
    _write_over(e, i, kind, added, sets=sets)


@translates("mul24", "mad24")
def _mul24(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind, part, sat = m.last(), m.choice("lo", "hi"), m.flag("sat")
    m.done()
    t = _cpp(kind)
    a, b, *c = (e.read(operand, kind) for operand in i.operands[1:])
    if sat:
        e.write(i.operands[0], f"mad24_hi_sat({a}, {b}, {c[0]})", kind)
        return
    product = f"mul24_{part}<{t}>({a}, {b})"
    e.write(i.operands[0], f"add<{t}>({product}, {c[0]})" if c else product, kind)


@translates("sad", "div", "rem")
def _plain(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if is_float(kind):
        float_arithmetic(e, i)
        return
    m.done()
    values = ", ".join(e.read(operand, kind) for operand in i.operands[1:])
    e.write(i.operands[0], f"{i.opcode}<{_cpp(kind)}>({values})", kind)


@translates("min", "max")
def _min(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if is_float(kind):
        float_arithmetic(e, i)
        return
    name = "smaller" if i.opcode == "min" else "larger"
    if _each16(e, i, m, name, kind):
        m.done()
        return
    relu = m.flag("relu")
    m.done()
    t = _cpp(kind)
    a, b = (e.read(operand, kind) for operand in i.operands[1:])
    value = f"{name}<{t}>({a}, {b})"
    e.write(i.operands[0], f"larger<{t}>({value}, 0)" if relu else value, kind)


@translates("abs", "neg")
def _abs(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if is_float(kind):
        float_arithmetic(e, i)
        return
    m.done()
    a, t = e.read(i.operands[1], kind), _cpp(kind)
    e.write(i.operands[0], f"absolute<{t}>({a})" if i.opcode == "abs" else f"sub<{t}>({t}(0), {a})", kind)


@translates("popc", "clz", "brev", "bfind", "fns")
def _bits(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    if i.opcode == "fns":
        m.done()
        values = (e.read(i.operands[1], "b32"), e.read(i.operands[2], "b32"), e.read(i.operands[3], "s32"))
        e.write(i.operands[0], f"fns({', '.join(values)})", "u32")
        return
    a = e.read(i.operands[1], kind)
    if i.opcode == "bfind":
        shift = "true" if m.flag("shiftamt") else "false"
        e.write(i.operands[0], f"bfind<{_cpp(kind)}>({a}, {shift})", "u32")
    elif i.opcode == "brev":
        e.write(i.operands[0], f"brev<{_cpp(kind)}>({a})", kind)
    else:
        name = "popc" if i.opcode == "popc" else f"clz{8 * type_bytes(kind)}"
        e.write(i.operands[0], f"{name}({a})", "u32")
    m.done()


@translates("bfe", "bfi", "bmsk", "szext")
def _fields(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    t = _cpp(kind)
    if i.opcode in ("bmsk", "szext"):
        clamp = "true" if m.choice("clamp", "wrap") == "clamp" else "false"
        a, b = e.read(i.operands[1], kind), e.read(i.operands[2], "u32")
        name = "bmsk" if i.opcode == "bmsk" else f"szext<{t}>"
        e.write(i.operands[0], f"{name}({a}, {b}, {clamp})", kind)
    else:
        count = 1 if i.opcode == "bfe" else 2
        values = [e.read(operand, kind) for operand in i.operands[1 : 1 + count]]
        values += [e.read(operand, "u32") for operand in i.operands[1 + count :]]
        e.write(i.operands[0], f"{i.opcode}<{t}>({', '.join(values)})", kind)
    m.done()


@translates("and", "or", "xor", "not", "cnot")
def _logic(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.done()
    values = [e.read(operand, kind) for operand in i.operands[1:]]
    if i.opcode == "cnot":
        value = f"({values[0]} == 0)"
    elif i.opcode == "not":
        value = f"!{values[0]}" if kind == "pred" else f"~{values[0]}"
    else:
        sign = {"and": "&", "or": "|", "xor": "^"}[i.opcode]
        value = f"({values[0]} {sign} {values[1]})"
    e.write(i.operands[0], value, kind)


@translates("lop3")
def _lop3(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    combine = m.choice("and", "or", default="")
    m.done()
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:4])
    table = e.read(i.operands[4], "b32")
    first = i.operands[0]
    if not combine:
        e.write(first, f"lop3<u32>({a}, {b}, {c}, {table})", kind)
        return
    if not isinstance(first, Pair):
        raise refused(i, "expected d|p")
    q = e.read(i.operands[5], "pred")
    e.line(f"{{ const u32 x = lop3<u32>({a}, {b}, {c}, {table});")
    e.line(f"const bool y = (x != 0) {'&&' if combine == 'and' else '||'} {q};")
    e.write(first.first, "x", kind)
    e.write(first.second, "y", "pred")
    e.line("}")


@translates("shl", "shr")
def _shift(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.done()
    a, n = e.read(i.operands[1], kind), e.read(i.operands[2], "u32")
    e.write(i.operands[0], f"{i.opcode}<{_cpp(kind)}>({a}, {n})", kind)


@translates("shf")
def _funnel(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.last()
    side = m.choice("l", "r")
    wrap = "true" if m.choice("wrap", "clamp") == "wrap" else "false"
    m.done()
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:])
    e.write(i.operands[0], f"shf_{side}({a}, {b}, {c}, {wrap})", "b32")


_PERMUTES = {"f4e": "kF4e", "b4e": "kB4e", "rc8": "kRc8", "ecl": "kEcl", "ecr": "kEcr", "rc16": "kRc16"}


@translates("prmt")
def _prmt(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    m.flag("b32")
    mode = _PERMUTES.get(m.choice(*_PERMUTES, default=""), "kIndex")
    m.done()
    a, b, c = (e.read(operand, "b32") for operand in i.operands[1:])
    e.write(i.operands[0], f"prmt({a}, {b}, {c}, Permute::{mode})", "b32")


@translates("dp4a", "dp2a")
def _dot(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    b_kind, a_kind = m.last(), m.last()
    signs = f"{'true' if a_kind[0] == 's' else 'false'}, {'true' if b_kind[0] == 's' else 'false'}"
    values = [e.read(operand, "b32") for operand in i.operands[1:]]
    if i.opcode == "dp2a":
        values.append("true" if m.choice("lo", "hi") == "hi" else "false")
    m.done()
    e.write(i.operands[0], f"{i.opcode}<{signs}>({', '.join(values)})", "b32")
