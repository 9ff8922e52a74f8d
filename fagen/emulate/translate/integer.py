"""Integer, logic, shift, comparison, selection and move instructions. Source: PTX ISA, Instructions."""

from __future__ import annotations

from ..ptx.model import Immediate, Instruction, Pair, Register, Symbol, Vector
from ..ptx.parse import type_bytes
from .emit import UNSIGNED, Emitter, Modifiers, refused, translates
from .floats import float_arithmetic, is_float

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


def _cpp(kind: str) -> str:
    """The C++ type of an integer or untyped PTX type."""
    return f"{'s' if kind.startswith('s') else 'u'}{8 * type_bytes(kind)}"


def _each16(e: Emitter, i: Instruction, name: str, kind: str) -> bool:
    """Two 16-bit integers in 32 bits (u16x2, s16x2): add, min, max."""
    if kind not in ("u16x2", "s16x2"):
        return False
    t = "s16" if kind[0] == "s" else "u16"
    a, b = (e.read(operand, "u32") for operand in i.operands[1:3])
    body = f"static_cast<u16>({name}<{t}>(static_cast<{t}>(x), static_cast<{t}>(y)))"
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
    elif not _each16(e, i, i.opcode, kind):
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
    carry = e.carry()
    taken = carry if carry_in else "false"
    e.line(f"{{ bool over; const {unsigned} x = {name}<{unsigned}>({a}, {b}, {taken}, over);")
    if sets:
        e.line(f"{carry} = over;")
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
        e.line(
            f"{{ bool over; const {unsigned} x = add_carry<{unsigned}>({unsigned}({product}), {unsigned}({c}), false, "
            f"over); {e.carry()} = over;"
        )
        e.write(i.operands[0], "x", f"b{8 * type_bytes(result)}")
        e.line("}")
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
    e.line(
        f"{{ bool over; const {unsigned} x = add_carry<{unsigned}>({unsigned}(mul_{part}<{_cpp(kind)}>({a}, {b})), "
        f"{unsigned}({c}), {e.carry()}, over);"
    )
    if sets:
        e.line(f"{e.carry()} = over;")
    e.write(i.operands[0], "x", f"b{8 * type_bytes(kind)}")
    e.line("}")


@translates("mul24", "mad24")
def _mul24(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind, part = m.last(), m.choice("lo", "hi")
    m.done()
    t = _cpp(kind)
    a, b, *c = (e.read(operand, kind) for operand in i.operands[1:])
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
    if _each16(e, i, name, kind):
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
    e.line(
        f"{{ const u32 x = lop3<u32>({a}, {b}, {c}, {table}); const bool y = (x != 0) {'&&' if combine == 'and' else '||'} {q};"
    )
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
        e.line(
            f"const bool x = {'c ' + sign + ' ' + third if combine else 'c'}, y = {'!c ' + sign + ' ' + third if combine else '!c'};"
        )
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
    a, b = (_bits_of(e, i, operand, i.modifiers[-1]) for operand in i.operands[1:3])
    e.write(i.operands[0], f"({e.read(i.operands[3], 'pred')} ? {a} : {b})", kind)


@translates("slct")
def _slct(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    test, kind, flush = m.last(), m.last(), m.flag("ftz")
    m.done()
    a, b = (_bits_of(e, i, operand, kind) for operand in i.operands[1:3])
    c = e.read(i.operands[3], test)
    if test == "f32" and flush:
        c = f"flushed({c})"
    e.write(i.operands[0], f"({c} >= 0 ? {a} : {b})", f"b{8 * type_bytes(kind)}")


def _bits_of(e: Emitter, i: Instruction, operand: object, kind: str) -> str:
    """An operand's pattern, float constants too."""
    if isinstance(operand, Immediate) and kind in ("f32", "f64"):
        return f"bits({e.read(operand, kind)})"
    return e.read(operand, f"b{8 * type_bytes(kind)}")  # type: ignore[arg-type]


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
        e.write(to, _bits_of(e, i, value, kind), untyped)
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
