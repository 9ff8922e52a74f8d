"""The typed tree of an expression.

A tree is what is left of a text once constants are substituted, macros expanded, chained comparisons made
conjunctions, ``& | ~`` made ``and or not``, and integer arithmetic on constants done. Nodes are compared and
hashed by value. ``type`` is "bool", "int" or "real"; an integer used with a real number becomes real there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from .functions import EXTREMES, TYPE_KEEPING

Type = Literal["bool", "int", "real"]

# The names every expression knows, with their types; docs/spec.md says what each means.
NAMES: dict[str, Type] = {
    "s": "real",  # the scaled score; in `score` only
    "b": "int",  # sequence
    "h": "int",  # query head
    "hk": "int",  # key head
    "i": "int",  # row of the query within its sequence
    "j": "int",  # row of the key within its sequence
    "q": "int",  # position of the query
    "kv": "int",  # position of the key
    "q_len": "int",  # true number of queries of this sequence
    "kv_len": "int",  # true number of its keys
}


def _join(a: Type, b: Type) -> Type:
    return a if a == b else "real"


@dataclass(frozen=True, slots=True)
class Number:
    """A constant: True or False, an integer within 64 bits, or a finite real number (never -0.0)."""

    value: bool | int | float
    type: Type = field(init=False, repr=False)  # compared, since in Python 1 == 1.0 == True

    def __post_init__(self) -> None:
        kind: Type = "real"
        if isinstance(self.value, bool):
            kind = "bool"
        elif isinstance(self.value, int):
            kind = "int"
        object.__setattr__(self, "type", kind)


@dataclass(frozen=True, slots=True)
class Name:
    """One of NAMES, or a param of shape []."""

    id: str
    type: Type = "int"


@dataclass(frozen=True, slots=True)
class Read:
    """An entry of a param; outside its extents 0 or False. ``indices`` are integers, one a dimension."""

    param: str
    indices: tuple[Node, ...]
    type: Type = "real"


@dataclass(frozen=True, slots=True)
class Unary:
    """``-x``; op is always "-"."""

    op: str
    x: Node
    type: Type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.x.type)


@dataclass(frozen=True, slots=True)
class Binary:
    """Arithmetic: op is one of + - * / // % **.

    "/" is always real. "//" and "%" floor, and with an integer divisor of 0 give 0. "**" is an integer where the
    base is one (the exponent is then a constant from 0 to 64), else real.
    """

    op: str
    left: Node
    right: Node
    type: Type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.op == "/":
            kind: Type = "real"
        elif self.op == "**" and isinstance(self.right, Number):
            kind = self.left.type if self.right.type == "int" and self.right.value >= 0 else "real"
        else:
            kind = _join(self.left.type, self.right.type)
        object.__setattr__(self, "type", kind)


@dataclass(frozen=True, slots=True)
class Compare:
    """op is one of < <= > >= == !=; between two numbers, or (== and != only) two truth values."""

    op: str
    left: Node
    right: Node
    type: Type = field(init=False, repr=False, compare=False, default="bool")


@dataclass(frozen=True, slots=True)
class Logic:
    """op is "and" or "or"; at least two arguments, none of them a Logic with the same op."""

    op: str
    args: tuple[Node, ...]
    type: Type = field(init=False, repr=False, compare=False, default="bool")


@dataclass(frozen=True, slots=True)
class Not:
    """``not x``."""

    x: Node
    type: Type = field(init=False, repr=False, compare=False, default="bool")


@dataclass(frozen=True, slots=True)
class Conditional:
    """``yes if test else no``; both branches are numbers, or both are truth values."""

    test: Node
    yes: Node
    no: Node
    type: Type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _join(self.yes.type, self.no.type))


@dataclass(frozen=True, slots=True)
class Call:
    """A function of functions.py; min and max have two arguments, the others one."""

    function: str
    args: tuple[Node, ...]
    type: Type = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind: Type = "real"
        if self.function in EXTREMES:
            kind = _join(self.args[0].type, self.args[1].type)
        elif self.function in TYPE_KEEPING:
            kind = self.args[0].type
        object.__setattr__(self, "type", kind)


Node = Number | Name | Read | Unary | Binary | Compare | Logic | Not | Conditional | Call

TRUE = Number(True)
FALSE = Number(False)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below, in the order they are written."""
    match node:
        case Number() | Name():
            return ()
        case Read(indices=below) | Logic(args=below) | Call(args=below):
            return below
        case Unary(x=x) | Not(x=x):
            return (x,)
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return (left, right)
        case Conditional(test=test, yes=yes, no=no):
            return (yes, test, no)


def with_children(node: Node, below: tuple[Node, ...]) -> Node:
    """The node with other children, given in the order of :func:`children`."""
    match node:
        case Number() | Name():
            return node
        case Read(param=param, type=kind):
            return Read(param, below, kind)
        case Logic(op=op):
            return Logic(op, below)
        case Call(function=function):
            return Call(function, below)
        case Unary(op=op):
            return Unary(op, below[0])
        case Not():
            return Not(below[0])
        case Binary(op=op):
            return Binary(op, below[0], below[1])
        case Compare(op=op):
            return Compare(op, below[0], below[1])
        case Conditional():
            return Conditional(below[1], below[0], below[2])


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it, in the order they are written; a shared node comes up each time it is used."""
    stack = [node]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def reads(node: Node) -> tuple[str, ...]:
    """The params an expression reads, scalars too, each once, in order of their first use."""
    found: dict[str, None] = {}
    for below in walk(node):
        if isinstance(below, Read):
            found[below.param] = None
        elif isinstance(below, Name) and below.id not in NAMES:
            found[below.id] = None
    return tuple(found)
