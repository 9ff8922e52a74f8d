"""An expression as nested Python functions on torch scalars, for FlexAttention to trace.

This is the peer's copy of the formula: it may be as slow as it likes before torch.compile has seen it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from ..runtime.language.nodes import Binary, Call, Compare, Conditional, Logic, Name, Node, Not, Number, Read, Unary

Closure = Callable[[Mapping[str, Any]], torch.Tensor]

_DTYPES = {int: torch.int64, float: torch.float32, bool: torch.bool}
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
_CALL: dict[str, Callable[..., torch.Tensor]] = {
    "min": torch.minimum,
    "max": torch.maximum,
    "abs": torch.abs,
    "floor": torch.floor,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softplus": lambda x: torch.nn.functional.softplus(x.float()),
    "sin": torch.sin,
    "cos": torch.cos,
}


def closure(node: Node, params: Mapping[str, torch.Tensor], device: str = "cpu") -> Closure:
    """A function from {name: scalar tensor or int} to the expression's value; all tensors are on ``device``."""
    match node:
        case Number(value=value):
            return lambda names: _tensor(value, device)
        case Name(id=name):
            return lambda names: _tensor(params[name] if name in params else names[name], device)
        case Read(param=name, indices=indices):
            below = [closure(index, params, device) for index in indices]
            return lambda names: _read(params[name], [index(names) for index in below])
        case Unary(x=x):
            return _applied(operator.neg, (x,), params, device)
        case Not(x=x):
            return _applied(operator.invert, (x,), params, device)
        case Binary(op=op, left=left, right=right):
            exact = node.type == "int" and op in ("//", "%")
            return _applied(_divided(op) if exact else _BINARY[op], (left, right), params, device)
        case Compare(op=op, left=left, right=right):
            return _applied(_COMPARE[op], (left, right), params, device)
        case Logic(op=op, args=args):
            join = operator.and_ if op == "and" else operator.or_
            return _applied(lambda *values: reduce(join, values), args, params, device)
        case Conditional(test=test, yes=yes, no=no):
            return _applied(torch.where, (test, yes, no), params, device)
        case Call(function=function, args=args):
            return _applied(_CALL[function], args, params, device)
    raise AssertionError(node)


def _applied(
    function: Callable[..., Any], nodes: Sequence[Node], params: Mapping[str, torch.Tensor], device: str
) -> Closure:
    parts = [closure(node, params, device) for node in nodes]
    return lambda names: function(*(part(names) for part in parts))


def _tensor(value: Any, device: str) -> torch.Tensor:
    # Not torch.tensor: traced, that is a constant of the CPU's and a copy of it, which a kernel cannot hold.
    return (
        value if isinstance(value, torch.Tensor) else torch.full((), value, dtype=_DTYPES[type(value)], device=device)
    )


def _divided(op: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """``//`` or ``%`` of integers, which give 0 for a divisor of 0."""

    def divide(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        zero = b == 0
        return torch.where(zero, 0, _BINARY[op](a, torch.where(zero, 1, b)))

    return divide


def _read(param: torch.Tensor, indices: Sequence[torch.Tensor]) -> torch.Tensor:
    """An entry, or 0 outside the extents."""
    inside = [(index >= 0) & (index < size) for index, size in zip(indices, param.shape, strict=True)]
    clamped = [index.clamp(0, size - 1) for index, size in zip(indices, param.shape, strict=True)]
    entry = param[tuple(clamped)]
    return torch.where(reduce(operator.and_, inside), entry, torch.zeros_like(entry))
