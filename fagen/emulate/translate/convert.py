"""cvt in all its forms. Source: PTX ISA, Data Movement and Conversion Instructions: cvt, cvt.pack."""

from __future__ import annotations

from ..ptx.model import Instruction
from ..ptx.parse import type_bytes
from .emit import Emitter, translates
from .floats import ROUND, is_float
from .modifiers import Modifiers, refused
from .operands import truth

_NARROW = {"f16": "kF16", "bf16": "kBf16", "tf32": "kTf32", "e4m3": "kE4m3", "e5m2": "kE5m2"}
_PAIRS = {"f16x2": ("f16", 16), "bf16x2": ("bf16", 16), "e4m3x2": ("e4m3", 8), "e5m2x2": ("e5m2", 8)}


def _value(e: Emitter, operand: object, kind: str, flush: bool) -> str:
    """A floating-point operand as an exact double."""
    if kind in ("f32", "f64"):
        value = e.read(operand, kind)  # type: ignore[arg-type]
        return f"static_cast<double>({'flushed(' + value + ')' if flush and kind == 'f32' else value})"
    return f"{'Half' if kind == 'f16' else 'Bfloat'}::value({e.read(operand, 'b16')})"  # type: ignore[arg-type]


@translates("cvt")
def _cvt(e: Emitter, i: Instruction) -> None:
    m = Modifiers(i)
    if "pack" in m.left():
        _pack(e, i, m)
        return
    source, to = m.last(), m.last()
    mode = m.choice("rna", "rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rs", default="")
    if mode == "rs":
        raise refused(i, "stochastic rounding is not built")
    flush, sat, relu, finite = m.flag("ftz"), m.flag("sat"), m.flag("relu"), m.flag("satfinite")
    m.flag("scaled::n2::ue8m0")
    m.done()
    first = i.operands[0]
    if to in _PAIRS and source == "f32":
        form, width = _PAIRS[to]
        # The first source operand becomes the upper half.
        high, low = (
            f"narrow({_value(e, operand, 'f32', flush)}, {_NARROW[form]}, {ROUND[mode or 'rn']}, "
            f"{truth(finite)}, {truth(relu)})"
            for operand in i.operands[1:3]
        )
        e.write(first, f"({high} << {width} | {low})", f"b{2 * width}")
    elif to in ("e4m3x2", "e5m2x2") and source in ("f16x2", "bf16x2"):
        form = _PAIRS[to][0]
        half = "Half" if source == "f16x2" else "Bfloat"
        x = e.read(i.operands[1], "b32")
        part = f"narrow({half}::value(u16({x} >> {{}})), {_NARROW[form]}, Round::kNearestEven, true, {truth(relu)})"
        e.write(first, f"({part.format(16)} << 8 | {part.format(0)})", "b16")
    elif to in ("f16x2", "bf16x2") and source in ("e4m3x2", "e5m2x2"):
        form = _NARROW[_PAIRS[source][0]]
        x = e.read(i.operands[1], "b16")
        value = f"decode(u32({x}) >> {{}} & 0xffu, {form})"
        part = f"narrow({value}, {_NARROW[to[:-2]]}, Round::kNearestEven, false, {truth(relu)})"
        e.write(first, f"({part.format(8)} << 16 | {part.format(0)})", "b32")
    elif to == "tf32" and mode == "rna":
        e.write(first, f"tf32_away({e.read(i.operands[1], 'b32')}, {truth(finite)})", "b32")
    elif to == "tf32":
        value = _value(e, i.operands[1], "f32", flush)
        e.write(first, f"(narrow({value}, kTf32, {ROUND[mode]}, {truth(finite)}, {truth(relu)}) << 13)", "b32")
    elif to in ("f16", "bf16"):
        if is_float(source):
            if mode in ("rni", "rzi", "rmi", "rpi"):
                value = f"rounded_to_integer({_value(e, i.operands[1], source, flush)}, {ROUND[mode]})"
                e.write(first, f"narrow({value}, {_NARROW[to]}, Round::kNearestEven, false, false)", "b16")
                return
            value = _value(e, i.operands[1], source, flush)
        else:
            exact = "sticky_double" if type_bytes(source) == 8 else "static_cast<double>"
            value = f"{exact}({e.read(i.operands[1], source)})"
        out = f"u16(narrow({value}, {_NARROW[to]}, {ROUND[mode or 'rn']}, {truth(finite)}, {truth(relu)}))"
        if sat:
            form = "Half" if to == "f16" else "Bfloat"
            out = f"h_out<{form}, {truth(flush)}, true, false>({form}::value({out}), 0)"
        if source == "f64":
            x = e.read(i.operands[1], "f64")
            out = f"u16({x} != {x} ? narrowed_nan({x}, {_NARROW[to]}) : {out})"
        e.write(first, out, "b16")
    elif to in ("f32", "f64") and is_float(source):
        _between(e, i, source, to, mode, flush, sat)
    elif to in ("f32", "f64"):
        kind = "float" if to == "f32" else "double"
        value = f"from_integer<{kind}>({_integer(e, i, source)}, {ROUND[mode or 'rn']})"
        e.write(first, f"saturated({value})" if sat else value, to)
    elif is_float(source):
        t = ("s" if to[0] == "s" else "u") + to[1:]
        value = _value(e, i.operands[1], source, flush)
        e.write(first, f"to_integer<{t}>({value}, {ROUND[mode or 'rzi']}, {truth(source == 'f64')})", to)
    else:
        x = _integer(e, i, source)
        t = ("s" if to[0] == "s" else "u") + to[1:]
        e.write(first, f"clamped<{t}>({x})" if sat else f"static_cast<{t}>({x})", to)


def _pack(e: Emitter, i: Instruction, m: Modifiers) -> None:
    """Two saturated integers in one register, shifted into it where they are of a byte or less."""
    m.flag("pack")
    m.choice("sat")
    left = m.left()
    kind = next((each for each in left if each != "s32" and each != "b32"), "")
    for name in (kind, "s32", "b32"):
        m.flag(name)
    m.done()
    width, rest = int(kind[1:]), i.operands[3:]
    a, b = (e.read(operand, "s32") for operand in i.operands[1:3])
    c = e.read(rest[0], "b32") if rest else "0u"
    e.write(i.operands[0], f"pack_pair({a}, {b}, {c}, {width}, {truth(kind[0] == 's')})", "b32")


def _integer(e: Emitter, i: Instruction, source: str) -> str:
    t = ("s" if source[0] == "s" else "u") + source[1:]
    return f"{t}({e.read(i.operands[1], source)})"


def _between(e: Emitter, i: Instruction, source: str, to: str, mode: str, flush: bool, sat: bool) -> None:
    if (source, to, flush, sat) == ("bf16", "f32", False, False):  # the pattern as it is, NaN too
        e.write(i.operands[0], f"(u32({e.read(i.operands[1], 'b16')}) << 16)", "b32")
        return
    value = _value(e, i.operands[1], source, flush)
    if mode in ("rni", "rzi", "rmi", "rpi"):
        value = f"rounded_to_integer({value}, {ROUND[mode]})"
        mode = "rn"
    if to == "f32":
        value = f"out<{truth(flush)}, {truth(sat)}>(narrowed({value}, {ROUND[mode or 'rn']}))"
        if source == "f64" and not sat:
            x = e.read(i.operands[1], "f64")
            e.write(i.operands[0], f"({x} != {x} ? narrowed_nan({x}, kSingle) : bits({value}))", "b32")
        else:
            e.write(i.operands[0], value, "f32")
    else:
        e.write(i.operands[0], f"out<false, {truth(sat)}>({value})", "f64")
