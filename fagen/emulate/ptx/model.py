"""What a PTX module says, as dataclasses; names follow the PTX ISA's grammar."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Register:
    """A register, or a special one (`%tid.x`): its name with the percent sign."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: ``bits`` of an integer (two's complement, any width) or of a float of ``width`` bits (32 or 64; 0 for
    an integer)."""

    bits: int
    width: int = 0


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, parameter or function, plus ``offset`` bytes; also a label that is branched to."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """`[base + offset]`; ``base`` None is an absolute address. Tensor coordinates stand in ``index``."""

    base: Register | Symbol | None
    offset: int = 0
    index: tuple[Register | Immediate, ...] = ()


@dataclass(frozen=True)
class Vector:
    """`{a, b, c}`: of registers, immediates or sinks."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """`_`: a result nobody wants."""


@dataclass(frozen=True)
class Negated:
    """`!p`, of a predicate operand."""

    register: Register


@dataclass(frozen=True)
class Pair:
    """`p|q`: two destinations."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Address | Vector | Sink | Negated | Pair


@dataclass(frozen=True)
class Place:
    """Where an instruction is from: line of the PTX; file (an index of ``Module.files``), line and column of its
    source; of inlined code the same three of the call, ``caller``."""

    line: int
    file: int | None = None
    source_line: int = 0
    column: int = 0
    caller: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Instruction:
    """One instruction: `@!%p1 ld.global.v4.f32 ...` has guard %p1, negated, opcode "ld" and modifiers "global", "v4",
    "f32"."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    place: Place
    text: str
    guard: Register | None = None
    guard_negated: bool = False


@dataclass(frozen=True)
class Call:
    """`call (results), function, (arguments);` with a guard as any instruction."""

    function: str
    results: tuple[Operand, ...]
    arguments: tuple[Operand, ...]
    place: Place
    text: str
    guard: Register | None = None
    guard_negated: bool = False


@dataclass(frozen=True)
class Label:
    """A place in a function's body."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A variable or parameter: ``count`` elements of ``type`` (0: extern, its size is the launch's).

    ``initial`` holds bytes, or symbols whose addresses stand there by offset.
    """

    name: str
    space: str  # "global", "shared", "local", "const", "param"
    type: str
    count: int | None  # None: no array
    align: int
    place: Place
    initial: bytes = b""
    addresses: tuple[tuple[int, Symbol], ...] = ()
    extern: bool = False


Statement = Instruction | Call | Label


@dataclass(frozen=True)
class Scope:
    """`{ ... }`: declarations and statements; names declared inside are its own, nested scopes are statements too."""

    registers: dict[str, str]  # name -> type ("b32", "pred", ...)
    variables: tuple[Variable, ...]
    statements: tuple[Statement | Scope, ...]


@dataclass(frozen=True)
class Function:
    """An .entry or .func. ``body`` is None for a prototype. ``directives`` are such as maxntid, minnctapersm; ``lines``
    the places (file, line) of its own code, without what was inlined."""

    name: str
    entry: bool
    parameters: tuple[Variable, ...]
    results: tuple[Variable, ...]
    body: Scope | None
    directives: dict[str, tuple[int, ...]]
    place: Place
    lines: frozenset[tuple[int, int]] = frozenset()


@dataclass
class Module:
    """A whole PTX text."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    address_size: int = 64
    files: dict[int, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    # A place (file, line, column) of inlined code -> where that was inlined.
    inlined: dict[tuple[int, int, int], set[tuple[int, int, int]]] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
