"""Floating-point arithmetic: float32, float64, f16 and bf16 and their pairs. Source: PTX ISA, Floating Point
Instructions, Half Precision Floating-Point Instructions."""

from __future__ import annotations

from ..ptx.model import Instruction
from .emit import Emitter, translates
from .modifiers import Modifiers, refused

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
_ABS = {
    "f16": 0x7FFF,
    "bf16": 0x7FFF,
    "f16x2": 0x7FFF7FFF,
    "bf16x2": 0x7FFF7FFF,
    "f32": 0x7FFFFFFF,
    "f64": (1 << 63) - 1,
}


def is_float(kind: str) -> bool:
    """Whether a PTX type is a floating-point one."""
    return kind in ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2", "f32x2")


def _truth(value: bool) -> str:
    return "true" if value else "false"


def float_arithmetic(e: Emitter, i: Instruction) -> None:
    """add, sub, mul, fma, mad, div, min, max, abs, neg of a floating-point type."""
    m = Modifiers(i)
    kind = m.last()
    if kind == "f32x2":
        raise refused(i, "pairs of float32 are not built")
    if i.opcode in ("abs", "neg"):
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
    values = [f"in<{_truth(flush)}>({e.read(operand, kind)})" for operand in i.operands[1:]]
    if i.opcode == "sub":
        values[1] = f"-{values[1]}"
    call = f"approx_div({', '.join(values)})" if approx else f"{name}<{mode}>({', '.join(values)})"
    e.write(i.operands[0], f"out<{_truth(flush)}, {_truth(sat)}>({call})", kind)


def _half(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    m.flag("rn")
    form = "Bfloat" if kind.startswith("bf") else "Half"
    flush, sat, relu, oob = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("oob")
    if oob:
        raise refused(i, ".oob is not built")
    flags = f"{form}, {_truth(flush)}, {_truth(sat)}"
    pair = kind.endswith("x2")
    names = ("x", "y", "z")[: len(i.operands) - 1]
    if i.opcode in ("fma", "mad"):
        body = f"h_fma<{flags}, {_truth(relu)}>(x, y, z)"
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
    flush = m.flag("ftz")
    size = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16}.get(kind, 32)
    suffix = "ull" if size == 64 else "u"
    bits = e.read(i.operands[1], f"b{size}")
    if flush and kind == "f32":
        bits = f"bits(flushed({e.read(i.operands[1], 'f32')}))"
    elif flush:
        bits = (
            f"each_half({bits}, [](u16 x) {{ return flush16<Half>(x); }})"
            if kind.endswith("x2")
            else f"flush16<Half>({bits})"
        )
    mask = _ABS[kind]
    full = (1 << size) - 1
    changed = f"({bits} & {hex(mask)}{suffix})" if i.opcode == "abs" else f"({bits} ^ {hex(full ^ mask)}{suffix})"
    e.write(i.operands[0], changed, f"b{size}")


def _extreme(e: Emitter, i: Instruction, m: Modifiers, kind: str) -> None:
    flush, nan = m.flag("ftz"), m.flag("NaN")
    xor = m.flag("xorsign")
    absolute = m.flag("abs")
    operands = i.operands[1:]
    if kind in ("f32", "f64"):
        values = [f"in<{_truth(flush)}>({e.read(operand, kind)})" for operand in operands]
        if absolute:
            given = values
            values = [f"std::fabs({value})" for value in values]
        call = values[0]
        for value in values[1:]:
            call = f"f_{i.opcode}<{_truth(nan)}>({call}, {value})"
        if xor:
            call = f"std::copysign({call}, (std::signbit({given[0]}) != std::signbit({given[1]})) ? -1.0f : 1.0f)"
        e.write(i.operands[0], call, kind)
        return
    form = "Bfloat" if kind.startswith("bf") else "Half"
    x, y = ("x", "y") if not flush else (f"flush16<{form}>(x)", f"flush16<{form}>(y)")
    if absolute:
        body = f"u16(h_{i.opcode}<{form}, {_truth(nan)}>({x} & 0x7fffu, {y} & 0x7fffu) | ((x ^ y) & 0x8000u))"
    else:
        body = f"h_{i.opcode}<{form}, {_truth(nan)}>({x}, {y})"
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
    a = f"in<{_truth(flush)}>({e.read(i.operands[1], kind)})"
    one = "1.0f" if kind == "f32" else "1.0"
    if mode and i.opcode == "rcp":
        call = f"f_div<{ROUND[mode]}>({one}, {a})"
    elif mode and i.opcode == "sqrt":
        call = f"f_sqrt<{ROUND[mode]}>({a})"
    elif kind == "f64":
        call = {"rcp": f"(1.0 / {a})", "rsqrt": f"(1.0 / std::sqrt({a}))"}[i.opcode]
    else:
        del approx  # tanh.approx, ex2.approx, ...: there is no other form
        call = f"approx_{i.opcode}({a})"
    e.write(i.operands[0], f"out<{_truth(flush)}, false>({call})", kind)


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
