"""An expression as nested Python functions on torch scalars, for FlexAttention to trace.

This is the peer's copy of the formula: it may be as slow as it likes before torch.compile has seen it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..runtime.language.nodes import Binary, Call, Compare, Conditional, Logic, Name, Node, Not, Number, Read, Unary

Names = Mapping[str, Any]
Closure = Callable[[Names], Any]

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_CALL: dict[str, Callable[..., Any]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "abs": abs,
    "floor": torch.floor,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": torch.nn.functional.softplus,
    "sin": torch.sin,
    "cos": torch.cos,
}


def closure(node: Node, params: Mapping[str, torch.Tensor]) -> Closure:
    """A function from {name: tensor or int} to the expression's value; reads must lie within their extents."""
    below: list[Closure]
    match node:
        case Number(value=value):
            return lambda names: value
        case Name(id=name):
            return (lambda names: params[name]) if name in params else (lambda names: names[name])
        case Read(param=name, indices=indices):
            below = [closure(index, params) for index in indices]
            return lambda names: params[name][tuple(index(names) for index in below)]
        case Unary(x=x):
            inner = closure(x, params)
            return lambda names: -inner(names)
        case Not(x=x):
            inner = closure(x, params)
            return lambda names: ~inner(names)
        case Binary(op=op, left=left, right=right):
            return _two(_BINARY[op], closure(left, params), closure(right, params))
        case Compare(op=op, left=left, right=right):
            return _two(_COMPARE[op], closure(left, params), closure(right, params))
        case Logic(op=op, args=args):
            joined = closure(args[0], params)
            for arg in args[1:]:
                joined = _two(operator.and_ if op == "and" else operator.or_, joined, closure(arg, params))
            return joined
        case Conditional(test=test, yes=yes, no=no):
            parts = (closure(test, params), closure(yes, params), closure(no, params))
            return lambda names: torch.where(*(part(names) for part in parts))
        case Call(function=function, args=args):
            call, below = _CALL[function], [closure(arg, params) for arg in args]
            return lambda names: call(*(_tensor(part(names)) for part in below))
    raise AssertionError(node)


def _two(op: Callable[[Any, Any], Any], left: Closure, right: Closure) -> Closure:
    return lambda names: op(left(names), right(names))


def _tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.tensor(value)
