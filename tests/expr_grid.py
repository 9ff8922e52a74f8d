"""Expressions over a whole grid of pairs at once, by the language's definition, in numpy: the middle end's oracle.

It walks the parse tree and shares nothing with fagen/expr: integers are int64, reals float32 (or float64), and a read
outside an extent gives 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fagen.runtime.language import (
    Binary,
    Call,
    Compare,
    Conditional,
    Logic,
    Name,
    Node,
    Not,
    Number,
    Read,
    Unary,
    parse,
    reads,
    unparse,
)
from fagen.runtime.variant import Expression, Param, Variant

_COMPARE = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


@dataclass
class Grid:
    """All pairs of one batch entry and head: names are arrays that broadcast to [q_len, kv_len]."""

    b: int
    h: int
    hk: int
    q_len: int
    kv_len: int
    params: Mapping[str, Any]
    align: str = "bottom_right"
    s: Any = None
    real: Any = np.float32

    def __post_init__(self) -> None:
        self.i = np.arange(self.q_len)[:, None]
        self.j = np.arange(self.kv_len)[None, :]
        self.kv = self.j
        self.q = self.i + (self.kv_len - self.q_len if self.align == "bottom_right" else 0)

    def value(self, node: Node) -> Any:
        """The value at every pair, [q_len, kv_len]."""
        with np.errstate(all="ignore"):
            return np.broadcast_to(self._value(node), (self.q_len, self.kv_len))

    def _number(self, node: Node, kind: str) -> Any:
        value = self._value(node)
        return np.asarray(value).astype(self.real) if kind == "real" and node.type != "real" else value

    def _value(self, node: Node) -> Any:
        kind = node.type
        match node:
            case Number(value=value):
                return {"bool": np.bool_, "int": np.int64, "real": self.real}[kind](value)
            case Name(id=name) if name in self.params:
                return self._read(name, (), kind)
            case Name(id=name):
                value = getattr(self, name)
                return value if name == "s" else np.asarray(value, np.int64)
            case Read(param=name, indices=indices):
                return self._read(name, tuple(self._value(index) for index in indices), kind)
            case Unary(x=x):
                return -self._value(x)
            case Binary(op="**", left=left, right=right):
                base = self._number(left, kind)
                exponent = self._value(right)
                return base**exponent if kind == "int" else np.power(base, np.asarray(exponent).astype(self.real))
            case Binary(op=op, left=left, right=right):
                return self._binary(op, self._number(left, kind), self._number(right, kind), kind)
            case Compare(op=op, left=left, right=right):
                common = left.type if left.type == right.type else "real"
                real = left if left.type == "real" else right
                if {left.type, right.type} == {"int", "real"} and isinstance(real, Number):
                    common = "exact"  # a kernel compares an integer with a constant without rounding it
                a, b = self._number(left, common), self._number(right, common)
                return _COMPARE[op](*((np.float64(x) for x in (a, b)) if common == "exact" else (a, b)))
            case Logic(op=op, args=args):
                values = [self._value(arg) for arg in args]
                result = values[0]
                for value in values[1:]:
                    result = result & value if op == "and" else result | value
                return result
            case Not(x=x):
                return ~self._value(x)
            case Conditional(test=test, yes=yes, no=no):
                return np.where(self._value(test), self._number(yes, kind), self._number(no, kind))
            case Call(function=function, args=args):
                return self._call(function, [self._number(arg, kind) for arg in args], kind)
        raise TypeError(node)

    def _read(self, name: str, indices: tuple[Any, ...], kind: str) -> Any:
        array = self.params[name]
        if array.dtype == np.uint16:  # bf16, held as the upper halves of float32
            array = (array.astype(np.uint32) << 16).view(np.float32)
        dtype = {"bool": np.bool_, "int": np.int64, "real": self.real}[kind]
        inside = np.asarray(True)
        for index, size in zip(indices, array.shape, strict=True):
            inside = inside & (np.asarray(index) >= 0) & (np.asarray(index) < size)
        if 0 in array.shape:
            return np.where(inside, dtype(0), dtype(0))
        safe = tuple(np.clip(index, 0, size - 1) for index, size in zip(indices, array.shape, strict=True))
        return np.where(inside, array[safe].astype(dtype), dtype(0))

    def _binary(self, op: str, a: Any, b: Any, kind: str) -> Any:
        if op in "+-*":
            return {"+": np.add, "-": np.subtract, "*": np.multiply}[op](a, b)
        if op == "/":
            return np.divide(np.asarray(a).astype(self.real), np.asarray(b).astype(self.real))
        divide = np.floor_divide if op == "//" else np.remainder
        if kind == "real":
            return divide(a, b)
        return np.where(b == 0, 0, divide(a, np.where(b == 0, 1, b)))

    def _call(self, function: str, args: list[Any], kind: str) -> Any:
        if function in ("min", "max"):
            a, b = args
            return np.where(((a <= b) if function == "min" else (a >= b)) | (a != a), a, b)
        (x,) = args
        if function == "floor":
            return np.floor(x) if kind == "real" else x
        if function == "sigmoid":
            return 1 / (1 + np.exp(-x))
        if function == "softplus":
            return np.logaddexp(x, self.real(0))
        return getattr(np, function)(x)


def variant_of(
    params: Mapping[str, Param],
    mask: str | Node | None = None,
    score: str | Node | None = None,
    align: str = "bottom_right",
) -> Variant:
    """A variant with these expressions (text or trees) and the params they read."""
    used: set[str] = set()
    expressions: dict[str, Expression | None] = {}
    for expect, given in (("mask", mask), ("score", score)):
        if given is None:
            expressions[expect] = None
            continue
        tree = parse(given, params=params, expect=expect) if isinstance(given, str) else given
        used |= set(reads(tree))
        expressions[expect] = Expression(unparse(tree), unparse(tree))
    kept = tuple(param for name, param in params.items() if name in used)
    return Variant("v", 64, 64, params=kept, align=align, mask=expressions["mask"], score=expressions["score"])
