"""The number a constant expression such as 1/16 stands for, in float64 arithmetic."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from ..runtime.language import (
    Binary,
    Call,
    Compare,
    Conditional,
    Logic,
    Node,
    Not,
    Number,
    Unary,
)

MAX_FLOAT32 = 3.4028234663852886e38

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": lambda a, b: a**b if isinstance(b, int) and 0 <= b <= 64 else float(a) ** float(b),
}
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CALL: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "log2": math.log2,
    "sqrt": math.sqrt,
    "tanh": math.tanh,
    "sigmoid": lambda x: 0.5 * (1 + math.tanh(x / 2)),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "sin": math.sin,
    "cos": math.cos,
}


class NoValueError(ValueError):
    """The expression is not a constant, or has no value that a float32 can hold."""


def value_of(node: Node) -> int | float:
    """The value of a tree parsed with ``expect="number"``, finite in float32. Raises NoValueError."""
    try:
        value = _value(node)
    except NoValueError:
        raise
    except (ArithmeticError, ValueError, TypeError):
        raise NoValueError("this has no finite value") from None
    if isinstance(value, complex) or not abs(value) <= MAX_FLOAT32:
        raise NoValueError("this has no finite value in float32")
    return float(value) if node.type == "real" else int(value)


def _value(node: Node) -> Any:
    match node:
        case Number(value=constant):
            return constant
        case Unary(x=x):
            return -_value(x)
        case Binary(op=op, left=left, right=right):
            return _BINARY[op](_value(left), _value(right))
        case Compare(op=op, left=left, right=right):
            return _COMPARE[op](_value(left), _value(right))
        case Logic(op=op, args=args):
            return (all if op == "and" else any)(_value(arg) for arg in args)
        case Not(x=x):
            return not _value(x)
        case Conditional(test=test, yes=yes, no=no):
            return _value(yes) if _value(test) else _value(no)
        case Call(function=function, args=args):
            return _CALL[function](*(_value(arg) for arg in args))
        case _:
            raise NoValueError("this is not a constant")
