"""Registers, variables and constants of a kernel in C++."""

from __future__ import annotations

import re
from collections.abc import Collection

from ..ptx.model import Address, Immediate, Negated, Operand, Register, Sink, Symbol, Vector
from ..ptx.parse import type_bytes
from .flat import Kernel
from .modifiers import Unplaced
from .special import SPECIAL

UNSIGNED = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}


class Operands:
    """Those of one kernel. ``kept`` registers lie where other lanes and the machine find them, and outlive pauses."""

    def __init__(self, kernel: Kernel):
        self.kernel = kernel
        self.kept: Collection[str] = ()
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()

    def register(self, register: Register) -> str:
        """Its C++ lvalue."""
        name = register.name
        if name not in self.kernel.registers:
            raise Unplaced(f"no register {name} is declared")
        return f"R.{self.name_of(name)}" if name in self.kept else self.name_of(name)

    def read(self, operand: Operand, kind: str) -> str:
        """``operand`` as a C++ value of PTX type ``kind``; floats as float and double, b-types and f16 as unsigned."""
        size = type_bytes(kind)
        if kind == "pred":
            match operand:
                case Register():
                    return self.register(operand)
                case Negated(register):
                    return f"!{self.register(register)}"
                case Immediate(bits):
                    return truth(bool(bits))
            raise Unplaced(f"no predicate: {operand}")
        unsigned = UNSIGNED[size]
        match operand:
            case Register(name) if name in self.kernel.registers:
                value = self.register(operand)
                if type_bytes(self.kernel.registers[name]) != size:
                    value = f"static_cast<{unsigned}>({value})"
            case Register(name):
                value = self._special(name, unsigned)
            case Immediate(bits, width):
                floating = "float" if size == 4 else "double"
                if kind in ("f32", "f64") and width not in (0, size * 8):
                    return f"static_cast<{floating}>(f{width}({hex(bits)}ull))"
                if kind in ("f32", "f64") and width == 0:
                    return f"{floating}({bits})"
                value = f"{unsigned}({hex(bits & (1 << 8 * min(size, 8)) - 1)}ull)"
                if size == 16 and bits < 0:
                    value = f"{unsigned}(__int128({bits}))"
            case Symbol(name, offset):
                value = f"static_cast<{unsigned}>({self._symbol(name)} + {offset})"
            case _:
                raise Unplaced(f"no value of type {kind}: {operand}")
        if kind == "f32":
            return f"f32({value})"
        if kind == "f64":
            return f"f64({value})"
        if kind.startswith("s"):
            return f"static_cast<s{size * 8}>({value})"
        return value

    def pattern(self, operand: Operand, kind: str) -> str:
        """The bits of ``operand``, also of a float constant."""
        if isinstance(operand, Immediate) and kind in ("f32", "f64"):
            return f"bits({self.read(operand, kind)})"
        return self.read(operand, f"b{8 * type_bytes(kind)}")

    def assigned(self, operand: Operand, value: str, kind: str) -> str:
        """A statement that assigns ``value``, of PTX type ``kind``, to the register ``operand``."""
        if isinstance(operand, Sink):
            return f"(void)({value});"
        if not isinstance(operand, Register):
            raise Unplaced(f"no register to write to: {operand}")
        target = self.register(operand)
        declared = self.kernel.registers[operand.name]
        if kind == "pred":
            return f"{target} = {value};"
        size, wide = type_bytes(kind), type_bytes(declared)
        if kind in ("f32", "f64"):
            value = f"bits({'float' if size == 4 else 'double'}({value}))"
        elif kind.startswith("s"):
            value = (
                f"static_cast<s{wide * 8}>(s{size * 8}({value}))"
                if wide != size and wide <= 8
                else f"s{size * 8}({value})"
            )
        elif wide != size:
            value = f"{UNSIGNED[size]}({value})"
        return f"{target} = static_cast<{UNSIGNED[wide]}>({value});"

    def address(self, operand: Operand) -> str:
        """A u64: an address in the instruction's state space."""
        if not isinstance(operand, Address):
            raise Unplaced(f"no address: {operand}")
        match operand.base:
            case None:
                return f"u64({operand.offset}ull)"
            case Register(name):
                base = f"u64({self.register(operand.base)})"
                if type_bytes(self.kernel.registers[name]) == 4 and operand.offset:
                    return f"u64(u32({self.register(operand.base)} + u32({operand.offset & 0xFFFFFFFF}u)))"
            case Symbol(name, inner):
                base = f"u64({self._symbol(name)} + {inner})"
        return f"({base} + u64({operand.offset}ll))" if operand.offset else base

    def frame(self, operand: Operand) -> tuple[str, int] | None:
        """Where a parameter that an address names lies, if it does: "param" (the launch's) or "frame", and offset."""
        if isinstance(operand, Address) and isinstance(operand.base, Symbol):
            place = self.kernel.places.get(operand.base.name)
            if place is not None and place.space in ("param", "frame"):
                offset = place.offset + operand.base.offset + operand.offset
                return place.space, offset
        return None

    def vector(self, operand: Operand, count: int) -> tuple[Operand, ...]:
        """The ``count`` items of `{...}`, or the operand itself where there is one."""
        if isinstance(operand, Vector):
            if len(operand.items) != count:
                raise Unplaced(f"expected {count} items: {operand}")
            return operand.items
        if count != 1:
            raise Unplaced(f"expected {count} items: {operand}")
        return (operand,)

    def name_of(self, register: str) -> str:
        """A register's name in C++."""
        if register not in self._names:
            base = "v" + re.sub(r"\W+", "_", register)
            while base in self._taken:
                base += "_"
            self._taken.add(base)
            self._names[register] = base
        return self._names[register]

    def type_of(self, register: str) -> str:
        """A register's type in C++."""
        declared = self.kernel.registers[register]
        return "bool" if declared == "pred" else UNSIGNED[type_bytes(declared)]

    def _symbol(self, name: str) -> str:
        """A variable's address in its state space, as a u64."""
        place = self.kernel.places.get(name)
        if place is None:
            raise Unplaced(f"the address of {name} is not known: no such variable, or a function's")
        if place.space in ("global", "const"):
            return f"reinterpret_cast<u64>(variable{place.offset})"
        return f"u64({place.offset})"

    def _special(self, name: str, unsigned: str) -> str:
        value = SPECIAL.get(name)
        if value is None:
            raise Unplaced(f"{name} is neither declared nor a special register that is built")
        return f"static_cast<{unsigned}>({value})"


def truth(value: bool) -> str:
    """A truth value in C++."""
    return "true" if value else "false"
