"""One kernel as a straight list of instructions: calls inlined, scopes opened, variables laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..ptx.model import (
    Address,
    Call,
    Function,
    Instruction,
    Label,
    Module,
    Negated,
    Operand,
    Pair,
    Register,
    Scope,
    Symbol,
    Variable,
    Vector,
)
from ..ptx.parse import type_bytes
from ..ptx.tokens import PtxError

# Functions that the system offers to kernels.
SERVICES = ("vprintf", "__assertfail")
SHARED_FIRST = 1024  # kSharedFirst of machine/thread.h


@dataclass(frozen=True)
class Place:
    """Where a variable lies: ``space`` "shared", "local", "param" (the launch's), "frame" (a call's parameters, kept in
    local memory), "global" or "const" (``offset`` is then an index into the module's variables)."""

    space: str
    offset: int
    bytes: int


@dataclass
class Kernel:
    """An entry, flattened. ``registers`` have their PTX types by their new names; ``places`` are of variables."""

    function: Function
    statements: list[Instruction | Label] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    local_bytes: int = 0
    shared_bytes: int = 0
    param_offsets: list[int] = field(default_factory=list)
    param_sizes: list[int] = field(default_factory=list)
    param_bytes: int = 0


def size_of(variable: Variable) -> int:
    """Bytes of a variable."""
    return type_bytes(variable.type) * (1 if variable.count is None else variable.count)


def flatten(module: Module, entry: Function) -> Kernel:
    """Raises PtxError for what cannot be inlined: recursion, and functions without a body."""
    kernel = Kernel(entry)
    for parameter in entry.parameters:
        offset = _aligned(kernel.param_bytes, parameter.align)
        size = size_of(parameter)
        kernel.places[parameter.name] = Place("param", offset, size)
        kernel.param_offsets.append(offset)
        kernel.param_sizes.append(size)
        kernel.param_bytes = offset + size
    for index, variable in enumerate(module.variables):
        if variable.space in ("global", "const"):
            kernel.places[variable.name] = Place(variable.space, index, size_of(variable))
    flattener = _Flattener(module, kernel)
    assert entry.body is not None
    flattener.scope(entry.body, {}, "", None, (entry.name,))
    flattener.lay_out_shared()
    return kernel


def _aligned(offset: int, align: int) -> int:
    return (offset + align - 1) // align * align


class _Flattener:
    def __init__(self, module: Module, kernel: Kernel):
        self._module = module
        self._kernel = kernel
        self._copies = 0
        self._shared: dict[str, Variable] = {}

    def scope(
        self, scope: Scope, outer: Mapping[str, str], prefix: str, end: str | None, callers: Sequence[str]
    ) -> None:
        """Statements of ``scope``; ``outer`` renames what surrounding scopes declare, ``end`` is where `ret` goes."""
        kernel = self._kernel
        names = dict(outer)
        for name, kind in scope.registers.items():
            new = f"{prefix}{name}"
            while new in kernel.registers:
                new += "'"
            kernel.registers[new] = kind
            names[name] = new
        for variable in scope.variables:
            new = variable.name
            if variable.space == "shared":
                self._shared[new] = variable
            elif variable.space in ("local", "param"):
                new = f"{prefix}{new}"
                while new in kernel.places:
                    new += "'"
                offset = _aligned(kernel.local_bytes, variable.align)
                kernel.places[new] = Place("local" if variable.space == "local" else "frame", offset, size_of(variable))
                kernel.local_bytes = offset + size_of(variable)
            else:
                raise PtxError(f"PTX line {variable.place.line}: a .{variable.space} variable within a function")
            names[variable.name] = new
        for statement in scope.statements:
            if isinstance(statement, Label):
                names[statement.name] = self._label(f"{prefix}{statement.name}")
        for statement in scope.statements:
            if isinstance(statement, Label):
                kernel.statements.append(Label(names[statement.name]))
            elif isinstance(statement, Scope):
                self.scope(statement, names, prefix, end, callers)
            elif isinstance(statement, Call):
                self._call(statement, names, callers)
            elif statement.opcode == "ret" and end is not None:
                kernel.statements.append(
                    replace(self._renamed(statement, names), opcode="bra", modifiers=("uni",), operands=(Symbol(end),))
                )
            else:
                kernel.statements.append(self._renamed(statement, names))

    def _label(self, name: str) -> str:
        labels = self.__dict__.setdefault("_labels", set())
        while name in labels:
            name += "'"
        labels.add(name)
        return name

    def _call(self, call: Call, names: Mapping[str, str], callers: Sequence[str]) -> None:
        function = self._module.functions.get(call.function)
        where = f"PTX line {call.place.line}: {call.text}"
        if call.function in SERVICES:
            self._service(call, names)
            return
        if function is None or function.body is None:
            raise PtxError(f"{where}: {call.function} has no body here")
        if call.function in callers:
            raise PtxError(f"{where}: recursion is not built")
        self._copies += 1
        prefix = f"{function.name}.{self._copies}."
        end = self._label(f"{prefix}end")
        inner: dict[str, str] = {}
        formal = [*function.results, *function.parameters]
        actual = [*call.results, *call.arguments]
        if len(formal) != len(actual):
            raise PtxError(f"{where}: {len(actual)} arguments and results, for {len(formal)}")
        for parameter, argument in zip(formal, actual, strict=True):
            if not isinstance(argument, Symbol):
                raise PtxError(f"{where}: arguments are parameters' names")
            inner[parameter.name] = names.get(argument.name, argument.name)
        skip = None
        if call.guard is not None:
            skip = self._label(f"{prefix}skip")
            guard = self._renamed(
                Instruction("bra", (), (Symbol(skip),), call.place, call.text, call.guard, not call.guard_negated),
                {**names, skip: skip},
            )
            self._kernel.statements.append(guard)
        self.scope(function.body, inner, prefix, end, (*callers, call.function))
        self._kernel.statements.append(Label(end))
        if skip is not None:
            self._kernel.statements.append(Label(skip))

    def _service(self, call: Call, names: Mapping[str, str]) -> None:
        """An instruction of the function's name; its operands are where results and arguments lie."""
        places = tuple(Address(each) for each in (*call.results, *call.arguments) if isinstance(each, Symbol))
        instruction = Instruction(call.function, (), places, call.place, call.text, call.guard, call.guard_negated)
        self._kernel.statements.append(self._renamed(instruction, names))

    def _renamed(self, instruction: Instruction, names: Mapping[str, str]) -> Instruction:
        def register(operand: Register) -> Register:
            return Register(names.get(operand.name, operand.name))

        def one(operand: Operand) -> Operand:
            match operand:
                case Register():
                    return register(operand)
                case Symbol(name, offset):
                    new = names.get(name, name)
                    if new in self._kernel.registers and offset == 0:  # inline assembly names some without a %
                        return Register(new)
                    self._need(name)
                    return Symbol(new, offset)
                case Address(base=base):
                    return replace(
                        operand,
                        base=one(base) if base is not None else None,  # type: ignore[arg-type]
                        index=tuple(one(each) for each in operand.index),  # type: ignore[misc]
                    )
                case Vector():
                    return Vector(tuple(one(each) for each in operand.items))
                case Negated():
                    return Negated(register(operand.register))
                case Pair():
                    return Pair(one(operand.first), one(operand.second))
                case _:
                    return operand

        guard = instruction.guard
        return replace(
            instruction,
            operands=tuple(one(operand) for operand in instruction.operands),
            guard=guard and register(guard),
        )

    def _need(self, name: str) -> None:
        """A .shared variable of the module counts where a kernel names it."""
        if name not in self._shared:
            for variable in self._module.variables:
                if variable.name == name and variable.space == "shared":
                    self._shared[name] = variable

    def lay_out_shared(self) -> None:
        """Static variables first, in order, then what the launch adds (extern arrays of no length)."""
        kernel, offset = self._kernel, 0
        for variable in self._shared.values():
            if not (variable.extern or variable.count == 0):
                offset = _aligned(offset, variable.align)
                kernel.places[variable.name] = Place("shared", SHARED_FIRST + offset, size_of(variable))
                offset += size_of(variable)
        kernel.shared_bytes = offset
        for variable in self._shared.values():
            if variable.extern or variable.count == 0:
                # The launch's part begins at a place that is aligned enough for anything.
                kernel.shared_bytes = _aligned(offset, 1024 if variable.align > 128 else 128)
        for variable in self._shared.values():
            if variable.extern or variable.count == 0:
                kernel.places[variable.name] = Place("shared", SHARED_FIRST + kernel.shared_bytes, 0)
