"""An expression as nested Python functions on torch scalars, for FlexAttention to trace.

This is the peer's copy of the formula: it may be as slow as it likes before torch.compile has seen it, and must come to
what one would write for FlexAttention by hand afterwards. So reads that cannot be outside are not tested, and integers
stay as wide as FlexAttention's own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from ..runtime.check.params import bounds_of
from ..runtime.language.nodes import (
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
    walk,
)

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


def closure(
    node: Node,
    params: Mapping[str, torch.Tensor],
    device: str = "cpu",
    bounds: Mapping[str, tuple[int, int]] | None = None,
) -> Closure:
    """A function from {name: scalar tensor or int} to the expression's value; all tensors are on ``device``.

    ``bounds`` are the least and the most that integer names are, and entries of params; None where they are not known.
    """
    value = _Walk(params, device, bounds)(node)
    return lambda names: _tensor(value(names), device)


@dataclass(frozen=True)
class _Walk:
    """From a node to a function of the names, whose value is a tensor or, of numbers and lengths alone, a number."""

    params: Mapping[str, torch.Tensor]
    device: str
    bounds: Mapping[str, tuple[int, int]] | None

    def __call__(self, node: Node) -> Callable[[Mapping[str, Any]], Any]:
        params = self.params
        match node:
            case Number(value=value):
                return lambda names: value
            case Name(id=name):
                return lambda names: params[name] if name in params else names[name]
            case Read(param=name, indices=indices):
                below = [self(index) for index in indices]
                sure = [self._is_inside(*each) for each in zip(indices, params[name].shape, strict=True)]
                return lambda names: _read(params[name], [self._tensor(index(names)) for index in below], sure)
            case Unary(x=x):
                return self._applied(operator.neg, (x,))
            case Not(x=x):
                return self._applied(operator.invert, (x,))
            case Binary(op="+" | "-" | "*" as op, left=left, right=right):
                return self._beside(_BINARY[op], left, right)
            case Binary(op=op, left=left, right=right):
                exact = node.type == "int" and op in ("//", "%")
                return self._applied(_divided(op) if exact else _BINARY[op], (left, right))
            case Compare(op=op, left=left, right=right):
                return self._beside(_COMPARE[op], left, right)
            case Logic(op=op, args=args):
                join = operator.and_ if op == "and" else operator.or_
                return self._applied(lambda *values: reduce(join, values), args)
            case Conditional(test=test, yes=yes, no=no):
                return self._applied(torch.where, (test, yes, no))
            case Call(function=function, args=args):
                return self._applied(_CALL[function], args)
        raise AssertionError(node)

    def _applied(self, function: Callable[..., Any], nodes: Sequence[Node]) -> Callable[[Mapping[str, Any]], Any]:
        parts = [self(node) for node in nodes]
        return lambda names: function(*(self._tensor(part(names)) for part in parts))

    def _beside(self, function: Callable[..., Any], *nodes: Node) -> Callable[[Mapping[str, Any]], Any]:
        """A number beside a tensor of its kind stays one: as a tensor it would widen the other."""
        parts = [self(node) for node in nodes]

        def apply(names: Mapping[str, Any]) -> Any:
            values = [part(names) for part in parts]
            narrow = any(isinstance(value, torch.Tensor) for value in values)
            return function(*(value if narrow and _is_short(value) else self._tensor(value) for value in values))

        return apply

    def _is_inside(self, index: Node, size: int) -> bool:
        """Whether it is known to be: of a sum or product of names and numbers, which bounds are sharp of."""
        plain = all(isinstance(n, Number | Name) or (isinstance(n, Binary) and n.op in "+-*") for n in walk(index))
        if self.bounds is None or not plain:
            return False
        low, high = bounds_of(index, self.bounds)
        return low >= 0 and high < size

    def _tensor(self, value: Any) -> torch.Tensor:
        return _tensor(value, self.device)


def _is_short(value: Any) -> bool:
    """Whether no 32 bits are too few for it: not an integer beyond them."""
    return not isinstance(value, int) or abs(value) < 2**31


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


def _read(param: torch.Tensor, indices: Sequence[torch.Tensor], sure: Sequence[bool]) -> torch.Tensor:
    """An entry, or 0 outside the extents; those indices that are ``sure`` to be inside are not looked at."""
    sizes = [(index, size) for index, size, known in zip(indices, param.shape, sure, strict=True) if not known]
    clamped = (
        index if known else index.clamp(0, size - 1)
        for index, size, known in zip(indices, param.shape, sure, strict=True)
    )
    entry = param[tuple(clamped)]
    if not sizes:
        return entry
    inside = [(index >= 0) & (index < size) for index, size in sizes]
    return torch.where(reduce(operator.and_, inside), entry, torch.zeros_like(entry))
