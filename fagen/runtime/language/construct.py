"""Nodes made with integer arithmetic on constants already done; real arithmetic is left as written."""

from __future__ import annotations

from collections.abc import Iterable

from .nodes import Binary, Call, Logic, Node, Number, Unary

MAX_INTEGER = 2**63 - 1
MAX_REAL = 3.4028234663852886e38  # the largest float32
MAX_EXPONENT = 64


class NumberError(ValueError):
    """A constant that does not fit, or has no value."""


def number(value: float) -> Number:
    """A constant; NumberError if it is too large or not finite."""
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise NumberError("this number does not fit in 64 bits")
    elif not abs(value) <= MAX_REAL:
        raise NumberError("this number does not fit in float32")
    return Number(value)


def negative(x: Node) -> Node:
    """``-x``. The constant -0.0 stays an operation, so that constants that are equal are the same."""
    if isinstance(x, Number) and (x.type == "int" or x.value != 0):
        return number(-x.value)
    return Unary("-", x)


def binary(op: str, left: Node, right: Node) -> Node:
    """``left op right``; NumberError where a constant result does not fit or a constant divisor is zero."""
    if op in ("/", "//", "%") and isinstance(right, Number) and right.value == 0:
        raise NumberError("this divides by zero")
    small = isinstance(right, Number) and 0 <= right.value <= MAX_EXPONENT
    if op == "**" and left.type == right.type == "int" and not small:
        raise NumberError(f"an integer's exponent is a constant from 0 to {MAX_EXPONENT}")
    if not (isinstance(left, Number) and isinstance(right, Number) and left.type == right.type == "int"):
        return Binary(op, left, right)
    a, b = int(left.value), int(right.value)
    match op:
        case "+":
            return number(a + b)
        case "-":
            return number(a - b)
        case "*":
            return number(a * b)
        case "//":
            return number(a // b)
        case "%":
            return number(a % b)
        case "**":
            return number(a**b)  # at most 64 times 63 bits before it is checked
        case _:
            return Binary(op, left, right)


def call(function: str, args: tuple[Node, ...]) -> Node:
    """``function(args)``; min and max of more than two arguments are folded from the left."""
    if function in ("min", "max"):
        result = args[0]
        for arg in args[1:]:
            if isinstance(result, Number) and isinstance(arg, Number) and result.type == arg.type == "int":
                result = Number(min(result.value, arg.value) if function == "min" else max(result.value, arg.value))
            else:
                result = Call(function, (result, arg))
        return result
    if isinstance(args[0], Number) and args[0].type == "int":
        if function == "abs":
            return Number(abs(args[0].value))
        if function == "floor":
            return args[0]
    return Call(function, args)


def logic(op: str, args: Iterable[Node]) -> Node:
    """The conjunction ("and") or disjunction ("or"), flattened; of one argument it is that argument."""
    flat: list[Node] = []
    for arg in args:
        flat.extend(arg.args if isinstance(arg, Logic) and arg.op == op else [arg])
    return flat[0] if len(flat) == 1 else Logic(op, tuple(flat))
