"""The number a constant expression stands for, such as the scale ``1/16``."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from .construct import NumberError, number
from .nodes import Binary, Call, Compare, Conditional, Logic, Node, Not, Number, Unary

_BINARY: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARE: dict[str, Callable] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CALL: dict[str, Callable] = {
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
    "sigmoid": lambda x: math.exp(-math.log1p(math.exp(-x))),
    "softplus": lambda x: max(x, 0.0) + math.log1p(math.exp(-abs(x))),
    "sin": math.sin,
    "cos": math.cos,
}


def value(node: Node) -> bool | int | float:
    """The value, in double precision, of a tree parsed with ``expect="number"``; NumberError if it has none."""
    try:
        result = _value(node)
        if node.type == "real":
            result = float(result)
        return number(result).value
    except (ArithmeticError, ValueError, TypeError) as error:
        if isinstance(error, NumberError):
            raise
        raise NumberError(f"this has no value: {error}") from None


def _value(node: Node) -> bool | int | float:
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
            return _CALL[function](*map(_value, args))
        case _:
            raise NumberError("this is not a constant")
