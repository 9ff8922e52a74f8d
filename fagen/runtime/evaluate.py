"""The value of an expression's tree in plain torch, differentiable by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from .language.nodes import (
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
)

_COMPARE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}
_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": torch.log,
    "log2": torch.log2,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    # torch's own softplus turns into x beyond 20, which float64 can tell apart.
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "sin": torch.sin,
    "cos": torch.cos,
}


class Evaluator:
    """Evaluates trees over one block of pairs.

    ``names`` holds b, h, hk, i, j, q, kv, q_len and kv_len as int64 tensors that broadcast to the block's shape, and
    ``s`` in ``dtype`` where there is one; ``params`` the run-time inputs, real ones in ``dtype``, integers as int64.
    Results broadcast to the block's shape too.

    Where a value is not used, because a condition chose the other branch, no gradient flows to it, not even one that
    is NaN: what a branch reads is taken without its gradient at every pair that does not take the branch.
    """

    def __init__(self, names: Mapping[str, Tensor], params: Mapping[str, Tensor], dtype: torch.dtype):
        self._names, self._params, self._dtype = names, params, dtype
        self._plain: dict[Node, Tensor] = {}

    def __call__(self, node: Node, taken: Tensor | None = None) -> Tensor:
        """The value; only at pairs where ``taken`` holds does it have a gradient (None: everywhere)."""
        if isinstance(node, Name):
            leaf = self._names[node.id] if node.id in self._names else self._params[node.id]
            return _stop_elsewhere(leaf, taken)
        if isinstance(node, Read):
            return _stop_elsewhere(self._read(node), taken)
        if node.type == "bool" or node.type == "int":
            return self._plain_value(node)
        if isinstance(node, Conditional):
            test = self._plain_value(node.test)
            return self._choose(test, node.yes, node.no, taken)
        if isinstance(node, Call) and node.function in ("min", "max"):
            return self._extreme(node, taken)
        return self._compute(node, lambda below: self(below, taken))

    def _plain_value(self, node: Node) -> Tensor:
        """The value without a gradient. Kept, since conditions and their branches ask for the same ones."""
        found = self._plain.get(node)
        if found is None:
            with torch.no_grad():
                if isinstance(node, (Name, Read)):
                    found = self(node).detach()
                elif isinstance(node, Conditional):
                    test, yes, no = map(self._plain_value, (node.test, node.yes, node.no))
                    found = torch.where(test, self._as(node, yes), self._as(node, no))
                elif isinstance(node, Call) and node.function in ("min", "max"):
                    left, right = (self._as(node, self._plain_value(arg)) for arg in node.args)
                    found = torch.where(_first_wins(node.function, left, right), left, right)
                else:
                    found = self._compute(node, self._plain_value)
            self._plain[node] = found
        return found

    def _choose(self, test: Tensor, yes: Node, no: Node, taken: Tensor | None) -> Tensor:
        there, elsewhere = (test, ~test) if taken is None else (taken & test, taken & ~test)
        return torch.where(test, self._real(self(yes, there)), self._real(self(no, elsewhere)))

    def _extreme(self, node: Call, taken: Tensor | None) -> Tensor:
        left, right = (self._real(self._plain_value(arg)) for arg in node.args)
        return self._choose(_first_wins(node.function, left, right), node.args[0], node.args[1], taken)

    def _compute(self, node: Node, value: Callable[[Node], Tensor]) -> Tensor:
        """One operation; ``value`` gives its operands."""
        match node:
            case Number(value=constant):
                dtype = {"bool": torch.bool, "int": torch.int64, "real": self._dtype}[node.type]
                return torch.tensor(constant, dtype=dtype, device=self._names["b"].device)
            case Unary(x=x):
                return -value(x)
            case Binary(op=op, left=left, right=right):
                return self._arithmetic(node, op, value(left), value(right))
            case Compare(op=op, left=left, right=right):
                a, b = value(left), value(right)
                if left.type != right.type:
                    a, b = self._real(a), self._real(b)
                return _COMPARE[op](a, b)
            case Logic(op=op, args=args):
                combine = torch.logical_and if op == "and" else torch.logical_or
                result = value(args[0])
                for arg in args[1:]:
                    result = combine(result, value(arg))
                return result
            case Not(x=x):
                return ~value(x)
            case Call(function="abs", args=(x,)):
                return value(x).abs()
            case Call(function="floor", args=(x,)):
                return value(x).floor()
            case Call(function=function, args=(x,)):
                return _FUNCTIONS[function](self._real(value(x)))
        raise TypeError(f"not an expression's node: {node!r}")

    def _arithmetic(self, node: Binary, op: str, a: Tensor, b: Tensor) -> Tensor:
        if node.type == "real" and not (op == "**" and node.right.type == "int"):
            a, b = self._real(a), self._real(b)
        match op:
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return a / b
            case "**" if isinstance(node.right, Number) and node.right.type == "int":
                return a ** int(node.right.value)
            case "**":
                return self._real(a) ** self._real(b)
        if node.type == "real":  # no gradient, by definition
            a, b = a.detach(), b.detach()
            return torch.div(a, b, rounding_mode="floor") if op == "//" else torch.remainder(a, b)
        # An integer divisor of 0 gives 0.
        zero = b == 0
        b = b.masked_fill(zero, 1)
        result = torch.div(a, b, rounding_mode="floor") if op == "//" else torch.remainder(a, b)
        return result.masked_fill(zero, 0)

    def _read(self, node: Read) -> Tensor:
        tensor = self._params[node.param]
        indices = [self._plain_value(index) for index in node.indices]
        inside = torch.ones((), dtype=torch.bool, device=tensor.device)
        clamped = []
        for index, size in zip(indices, tensor.shape, strict=True):
            inside = inside & (index >= 0) & (index < size)
            clamped.append(index.clamp(0, max(size - 1, 0)))
        if tensor.numel() == 0:
            return tensor.new_zeros(inside.shape)
        return torch.where(inside, tensor[tuple(clamped)], tensor.new_zeros(()))

    def _real(self, x: Tensor) -> Tensor:
        return x.to(self._dtype)

    def _as(self, node: Node, x: Tensor) -> Tensor:
        return self._real(x) if node.type == "real" else x


def _stop_elsewhere(leaf: Tensor, taken: Tensor | None) -> Tensor:
    """The same value, with a gradient only where ``taken`` holds."""
    if taken is None or not leaf.requires_grad:
        return leaf
    return torch.where(taken, leaf, leaf.detach())


def _first_wins(function: str, left: Tensor, right: Tensor) -> Tensor:
    """Where min or max is its first argument: on ties too, and where it is NaN."""
    better = left <= right if function == "min" else left >= right
    return better | left.isnan()
