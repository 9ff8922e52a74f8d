"""Floating-point arithmetic: float32, float64, f16 and bf16 and their pairs. Source: PTX ISA, Floating Point
Instructions, Half Precision Floating-Point Instructions."""

from __future__ import annotations

from ..ptx.model import Instruction
from .emit import Emitter, translates
from .modifiers import Modifiers, refused
from .operands import truth

ROUND = {
    "rn": "Round::kNearestEven",
    "rz": "Round::kZero",
    "rm": "Round::kDown",
    "rp": "Round::kUp",
    "rna": "Round::kNearestAway",
    "rni": "Round::kNearestEven",
    "rzi": "Round::kZero",
    "rmi": "Round::kDown",
    "rpi": "Round::kUp",
}


def is_float(kind: str) -> bool:
    """Whether a PTX type is a floating-point one."""
    return kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")


def float_arithmetic(e: Emitter, i: Instruction) -> None:
    """add, sub, mul, fma, mad, div, min, max, abs, neg of a floating-point type."""
    m = Modifiers(i)
    kind = m.last()
    if kind == "f32x2":
        _two(e, i, m)
    elif i.opcode in ("abs", "neg"):
        _sign(e, i, m, kind)
    elif i.opcode in ("min", "max"):
        _extreme(e, i, m, kind)
    elif kind in ("f32", "f64"):
        _wide(e, i, m, kind)
    else:
        _half(e, i, m, kind)
    m.done()


def _wide(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    flush, sat = m.flag("ftz"), m.flag("sat")
    approx = m.choice("approx", "full", default="")
    mode = ROUND[m.choice("rn", "rz", "rm", "rp", default="rn")]
    name = {"add": "f_add", "sub": "f_add", "mul": "f_mul", "fma": "f_fma", "mad": "f_fma", "div": "f_div"}[i.opcode]
    values = [f"in<{truth(flush)}>({e.read(operand, kind)})" for operand in i.operands[1:]]
    if i.opcode == "sub":
        values[1] = f"-{values[1]}"
    name = f"{approx}_div" if approx else f"{name}<{mode}>"
    call = f"{name}({', '.join(values)})"
    e.write(i.operands[0], f"out<{truth(flush)}, {truth(sat)}>({call})", kind)


def _two(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """Two float32 in 64 bits."""
    flush, mode = m.flag("ftz"), ROUND[m.choice("rn", "rz", "rm", "rp", default="rn")]
    name = {"add": "f_add", "sub": "f_add", "mul": "f_mul", "fma": "f_fma"}[i.opcode]
    e.line(f"{{ const u64 x[] = {{{', '.join(e.read(operand, 'b64') for operand in i.operands[1:])}}}; u64 y = 0;")
    values = [f"in<{truth(flush)}>(f32(u32(x[{n}] >> shift)))" for n in range(len(i.operands) - 1)]
    if i.opcode == "sub":
        values[1] = f"-{values[1]}"
    value = f"out<{truth(flush)}, false>({name}<{mode}>({', '.join(values)}))"
    e.line(f"for (int shift = 0; shift < 64; shift += 32) y |= u64(bits({value})) << shift;")
    e.write(i.operands[0], "y", "b64")
    e.line("}")


def _half(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    m.flag("rn")
    form = "Bfloat" if kind.startswith("bf") else "Half"
    flush, sat, relu, oob = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("oob")
    del oob  # what is special about it is a NaN of tensor copies, which are not built
    flags = f"{form}, {truth(flush)}, {truth(sat)}"
    pair = kind.endswith("x2")
    names = ("x", "y", "z")[: len(i.operands) - 1]
    if i.opcode in ("fma", "mad"):
        body = f"h_fma<{flags}, {truth(relu)}>(x, y, z)"
    elif i.opcode == "mul":
        body = f"h_mul<{flags}>(x, y)"
    elif i.opcode in ("add", "sub"):
        body = f"h_add<{flags}>(x, {'y' if i.opcode == 'add' else 'y ^ 0x8000u'})"
    else:
        raise refused(i, "no such instruction for 16 bits")
    _each(e, i, names, body, pair)


def _each(e: Emitter, i: Instruction, names: tuple[str, ...], body: str, pair: bool) -> None:
    values = [e.read(operand, "b32" if pair else "b16") for operand in i.operands[1 : 1 + len(names)]]
    formals = ", ".join(f"u16 {name}" for name in names)
    function = f"[]({formals}) -> u16 {{ return {body}; }}"
    if pair:
        e.write(i.operands[0], f"each_half({', '.join(values)}, {function})", "b32")
    else:
        e.write(i.operands[0], f"{function}({', '.join(values)})", "b16")


def _sign(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    flush, absolute = m.flag("ftz"), i.opcode == "abs"
    if kind == "f64":
        x = e.read(i.operands[1], "b64")
        e.write(i.operands[0], f"({x} & ~(1ull << 63))" if absolute else f"({x} ^ 1ull << 63)", "b64")
        return
    if kind == "f32":
        x = f"bits(flushed({e.read(i.operands[1], 'f32')}))" if flush else e.read(i.operands[1], "b32")
        sign = "0" if absolute else f"~{x} & 0x80000000u"
        e.write(i.operands[0], f"signed_as<23>({x} & 0x7fffffffu, {sign})", "b32")
        return
    x = f"flush16<{'Bfloat' if kind.startswith('bf') else 'Half'}>(x)" if flush else "x"
    mantissa, sign = 7 if kind.startswith("bf") else 10, "0" if absolute else "~x & 0x8000u"
    body = f"static_cast<u16>(signed_as<{mantissa}>({x} & 0x7fffu, {sign}))"
    _each(e, i, ("x",), body, kind.endswith("x2"))


def _extreme(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    flush, nan = m.flag("ftz"), m.flag("NaN")
    xor = m.flag("xorsign")
    absolute = m.flag("abs")
    operands = i.operands[1:]
    if kind in ("f32", "f64"):
        values = [f"in<{truth(flush)}>({e.read(operand, kind)})" for operand in operands]
        if absolute:
            given = values
            values = [f"std::fabs({value})" for value in values]
        call = values[0]
        for value in values[1:]:
            call = f"f_{i.opcode}<{truth(nan)}>({call}, {value})"
        if xor:
            call = f"xorsign({call}, {given[0]}, {given[1]})"
        e.write(i.operands[0], call, kind)
        return
    form = "Bfloat" if kind.startswith("bf") else "Half"
    x, y = ("x", "y") if not flush else (f"flush16<{form}>(x)", f"flush16<{form}>(y)")
    if absolute:
        value = f"h_{i.opcode}<{form}, {truth(nan)}>({x} & 0x7fffu, {y} & 0x7fffu)"
        body = f"static_cast<u16>(signed_as<{form}::format.mantissa_bits>({value}, (x ^ y) & 0x8000u))"
    else:
        body = f"h_{i.opcode}<{form}, {truth(nan)}>({x}, {y})"
    if len(operands) > 2:
        raise refused(i, "three operands of 16 bits are not built")
    _each(e, i, ("x", "y"), body, kind.endswith("x2"))


@translates("fma")
def _fma(e: Emitter, i: Instruction) -> None:
    float_arithmetic(e, i)


@translates("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh")
def _special(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    flush = m.flag("ftz")
    approx = m.flag("approx")
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        form = "Bfloat" if kind.startswith("bf") else "Half"
        function = {"ex2": "std::exp2", "tanh": "std::tanh"}.get(i.opcode)
        if function is None:
            raise refused(i, "no such instruction for 16 bits")
        argument = f"flush16<{form}>(x)" if flush else "x"
        body = f"h_unary<{form}>({argument}, [](double y) {{ return {function}(y); }})"
        m.done()
        _each(e, i, ("x",), f"flush16<{form}>({body})" if flush else body, kind.endswith("x2"))
        return
    mode = m.choice("rn", "rz", "rm", "rp", default="")
    m.done()
    a = f"in<{truth(flush)}>({e.read(i.operands[1], kind)})"
    one = "1.0f" if kind == "f32" else "1.0"
    if mode and i.opcode == "rcp":
        call = f"f_div<{ROUND[mode]}>({one}, {a})"
    elif mode and i.opcode == "sqrt":
        call = f"f_sqrt<{ROUND[mode]}>({a})"
    elif kind == "f64" and (flush or i.opcode == "rcp"):
        call = f"approx_{i.opcode}64({a})"
    elif kind == "f64":
        call = {"rsqrt": f"(1.0 / std::sqrt({a}))"}[i.opcode]
    else:
        del approx  # tanh.approx, ex2.approx, ...: there is no other form
        call = f"approx_{i.opcode}({a})"
    e.write(i.operands[0], f"out<{truth(flush)}, false>({call})", kind)


@translates("copysign")
def _copysign(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    m.done()
    size, suffix = (32, "u") if kind == "f32" else (64, "ull")
    sign = f"{hex(1 << (size - 1))}{suffix}"
    a, b = (e.read(operand, f"b{size}") for operand in i.operands[1:])
    e.write(i.operands[0], f"(({a} & {sign}) | ({b} & ~{sign}))", f"b{size}")


_TESTS = {
    "finite": "kFinite",
    "infinite": "kInfinite",
    "number": "kNumber",
    "notanumber": "kNotANumber",
    "normal": "kNormal",
    "subnormal": "kSubnormal",
}


@translates("testp")
def _testp(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    kind = m.last()
    test = _TESTS[m.choice(*_TESTS)]
    m.done()
    e.write(i.operands[0], f"testp({e.read(i.operands[1], kind)}, Test::{test})", "pred")
