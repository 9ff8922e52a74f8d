"""The typed graph that expressions are lowered to.

Nodes are hash-consed: within one Graph, equal nodes are the same object, so common subexpressions are shared and
``is`` compares them. Simplification only does what cannot change a result: exact integer arithmetic, and real
arithmetic where the float32 result is the same for every operand, NaN and -0.0 among them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Literal

Type = Literal["bool", "int", "real"]
Value = bool | int | float

# Names that differ from key to key; every other name is one value for a whole row. Those that the language does not
# have are of kernels: see exponents.py.
PAIR_NAMES = ("s", "j", "kv", "raw", "step")
_REAL_NAMES = ("s", "raw", "scale", "reference", "step")

REAL_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "softplus", "sin", "cos")


def round_f32(value: float) -> float:
    """The float32 nearest to a number; an infinity where that overflows."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One operation.

    ``op`` is "const", "name", "read", "to_real", "neg", "add", "sub", "mul", "div", "floordiv", "mod", "pow", "min",
    "max", "abs", "floor", "fma", "tanh_near" (factor · tanh + more), one of REAL_FUNCTIONS, "lt", "le", "eq", "and",
    "or", "not" or "select" (condition, yes, no). ``value`` is the constant, the name, or the param's name of a read,
    whose args are its indices.
    """

    op: str
    args: tuple[Node, ...]
    type: Type
    value: Value | str | None
    number: int  # in order of creation: operands come before what uses them
    per_key: bool = field(repr=False)  # depends on s, j or kv

    def __repr__(self) -> str:
        if self.op in ("const", "name"):
            return str(self.value)
        inside = ", ".join(map(repr, self.args))
        return f"{self.value}[{inside}]" if self.op == "read" else f"{self.op}({inside})"

    @property
    def is_const(self) -> bool:
        return self.op == "const"

    @property
    def integer(self) -> int:
        """The value of an integer constant."""
        assert isinstance(self.value, int)
        return self.value

    @property
    def real(self) -> float:
        """The value of a real constant."""
        assert isinstance(self.value, float)
        return self.value


def floor_div(a: int, b: int) -> int:
    """``a // b``; 0 where b is 0."""
    return a // b if b else 0


def floor_mod(a: int, b: int) -> int:
    """``a % b``; 0 where b is 0."""
    return a % b if b else 0


_INT_FOLDS: dict[str, Callable[..., int]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": floor_div,
    "mod": floor_mod,
    "min": min,
    "max": max,
}
# Rounding the double result once more to float32 gives what float32 arithmetic gives, for these operations.
_REAL_FOLDS: dict[str, Callable[..., float]] = {
    "neg": lambda a: -a,
    "abs": abs,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "min": lambda a, b: a if a <= b else b,
    "max": lambda a, b: a if a >= b else b,
}
_COMPARISONS: dict[str, Callable[..., bool]] = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
}


class Graph:
    """Makes nodes, each once."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[object, ...], Node] = {}

    def _node(self, op: str, args: tuple[Node, ...], kind: Type, value: Value | str | None = None) -> Node:
        # repr tells 1 from 1.0 and True, and 0.0 from -0.0, which compare equal.
        key = (op, kind, repr(value), *(arg.number for arg in args))
        node = self._nodes.get(key)
        if node is None:
            per_key = any(arg.per_key for arg in args) or (op == "name" and value in PAIR_NAMES)
            node = Node(op, args, kind, value, len(self._nodes), per_key)
            self._nodes[key] = node
        return node

    # ---- leaves ----

    def truth(self, value: bool) -> Node:
        return self._node("const", (), "bool", value)

    def integer(self, value: int) -> Node:
        return self._node("const", (), "int", value)

    def real(self, value: float) -> Node:
        return self._node("const", (), "real", round_f32(value))

    def name(self, name: str) -> Node:
        return self._node("name", (), "real" if name in _REAL_NAMES else "int", name)

    def read(self, param: str, indices: tuple[Node, ...], kind: Type) -> Node:
        return self._node("read", indices, kind, param)

    # ---- arithmetic ----

    def to_real(self, x: Node) -> Node:
        if x.type == "real":
            return x
        return self.real(float(x.integer)) if x.is_const else self._node("to_real", (x,), "real")

    def _balanced(self, a: Node, b: Node) -> tuple[Node, Node]:
        """Both integers, or both real."""
        if a.type == b.type:
            return a, b
        return self.to_real(a), self.to_real(b)

    def arithmetic(self, op: str, *args: Node) -> Node:
        """``op`` over numbers; an integer beside a real number becomes real first."""
        if len(args) == 2:
            args = self._balanced(*args)
        kind = args[0].type
        folds: Mapping[str, Callable[..., float]] = _INT_FOLDS if kind == "int" else _REAL_FOLDS
        if op in folds and all(arg.is_const for arg in args):
            result = folds[op](*(arg.value for arg in args))
            return self.integer(int(result)) if kind == "int" else self.real(result)
        return self._simpler(op, args, kind) or self._node(op, args, kind)

    def _simpler(self, op: str, args: tuple[Node, ...], kind: Type) -> Node | None:
        a = args[0]
        b = args[-1]
        if op == "neg" and a.op == "neg":
            return a.args[0]
        if op == "abs" and a.op == "abs":
            return a
        if op in ("min", "max") and a is b:
            return a
        if op == "floor" and (kind == "int" or a.op == "floor"):
            return a
        if op == "mul" and (a.value == 1 or b.value == 1):  # 1 or 1.0; true constants are never numbers here
            return b if a.is_const and a.value == 1 else a if b.is_const else None
        if kind == "real":
            if op == "div" and b.is_const and b.value == 1.0:
                return a
            return a if op == "sub" and b.is_const and repr(b.value) == "0.0" else None
        if op in ("add", "mul") and a.is_const and a.value == 0:
            return b if op == "add" else a
        if op in ("add", "sub", "mul") and b.is_const and b.value == 0:
            return b if op == "mul" else a
        if op == "sub" and a is b:
            return self.integer(0)
        if op in ("floordiv", "mod") and b.is_const and b.value == 1:
            return a if op == "floordiv" else self.integer(0)
        return None

    def add(self, a: Node, b: Node) -> Node:
        return self.arithmetic("add", a, b)

    def sub(self, a: Node, b: Node) -> Node:
        return self.arithmetic("sub", a, b)

    def mul(self, a: Node, b: Node) -> Node:
        return self.arithmetic("mul", a, b)

    def neg(self, a: Node) -> Node:
        return self.arithmetic("neg", a)

    def div(self, a: Node, b: Node) -> Node:
        """The real quotient."""
        a, b = self.to_real(a), self.to_real(b)
        if a.is_const and b.is_const and b.value != 0:
            return self.real(a.real / b.real)
        return self.arithmetic("div", a, b)

    def power(self, base: Node, exponent: int) -> Node:
        """A whole power of at least 1, by multiplications."""
        half = self.power(base, exponent // 2) if exponent > 1 else None
        if half is None:
            return base
        square = self.mul(half, half)
        return self.mul(square, base) if exponent % 2 else square

    def function(self, name: str, x: Node) -> Node:
        """One of REAL_FUNCTIONS."""
        return self._node(name, (self.to_real(x),), "real")

    # ---- truth ----

    def compare(self, op: str, a: Node, b: Node) -> Node:
        """``op`` is "lt", "le" or "eq", over two numbers or (eq) two truth values."""
        a, b = self._exact(op, a, b) or self._balanced(a, b)
        if a.is_const and b.is_const:
            return self.truth(_COMPARISONS[op](a.value, b.value))
        if a is b and a.type != "real":
            return self.truth(op != "lt")
        if a.type == "bool" and (a.is_const or b.is_const):
            constant, other = (a, b) if a.is_const else (b, a)
            return other if constant.value else self.not_(other)
        return self._node(op, (a, b), "bool")

    def _exact(self, op: str, a: Node, b: Node) -> tuple[Node, Node] | None:
        """An integer against a real constant, as two integers: no rounding of the integer to float32."""
        if a.type == "int" and b.type == "real" and b.is_const:
            bound = b.real
            if math.isfinite(bound) and abs(bound) < 2**62 and (op != "eq" or bound == math.floor(bound)):
                return a, self.integer(math.ceil(bound) if op == "lt" else math.floor(bound))
        if b.type == "int" and a.type == "real" and a.is_const:
            bound = a.real
            if math.isfinite(bound) and abs(bound) < 2**62 and (op != "eq" or bound == math.floor(bound)):
                return self.integer(math.floor(bound) if op == "lt" else math.ceil(bound)), b
        return None

    def not_(self, a: Node) -> Node:
        if a.is_const:
            return self.truth(not a.value)
        if a.op == "not":
            return a.args[0]
        if a.op in ("lt", "le") and a.args[0].type == "int":  # among integers there is no NaN
            return self.compare("le" if a.op == "lt" else "lt", a.args[1], a.args[0])
        return self._node("not", (a,), "bool")

    def logic(self, op: str, args: tuple[Node, ...]) -> Node:
        """ "and" or "or" of any number of truth values."""
        absorbing = op == "or"
        kept: dict[int, Node] = {}
        for arg in args:
            for part in arg.args if arg.op == op else (arg,):
                if part.is_const and part.value == absorbing:
                    return part
                if not part.is_const:
                    kept[part.number] = part
        if len(kept) < 2:
            return next(iter(kept.values()), self.truth(not absorbing))
        return self._node(op, tuple(kept.values()), "bool")

    def select(self, condition: Node, yes: Node, no: Node) -> Node:
        """``yes if condition else no``."""
        if yes.type != no.type:
            yes, no = self._balanced(yes, no)
        if condition.is_const:
            return yes if condition.value else no
        if yes is no:
            return yes
        if condition.op == "not":
            return self.select(condition.args[0], no, yes)
        return self._node("select", (condition, yes, no), yes.type)

    def again(self, node: Node, args: tuple[Node, ...]) -> Node:
        """The operation of a node over other operands."""
        if node.op in ("const", "name"):
            return node
        if node.op == "read":
            return self.read(str(node.value), args, node.type)
        if node.op in ("and", "or"):
            return self.logic(node.op, args)
        if node.op in ("lt", "le", "eq"):
            return self.compare(node.op, *args)
        if node.op in REAL_FUNCTIONS:
            return self.function(node.op, *args)
        special: dict[str, Callable[..., Node]]
        special = {"to_real": self.to_real, "not": self.not_, "select": self.select, "div": self.div}
        return special[node.op](*args) if node.op in special else self.arithmetic(node.op, *args)

    def substitute(self, root: Node, replacements: Mapping[Node, Node]) -> Node:
        """The root with some nodes replaced."""
        done = dict(replacements)
        for node in below((root,)):
            if node not in done:
                done[node] = self.again(node, tuple(done[arg] for arg in node.args))
        return done[root]


def below(roots: tuple[Node, ...], leaves: Container[Node] = ()) -> list[Node]:
    """The roots and all they depend on, each once, operands before their users; not what ``leaves`` depend on."""
    found: dict[int, Node] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.number not in found:
            found[node.number] = node
            if node not in leaves:
                stack.extend(node.args)
    return [found[number] for number in sorted(found)]
