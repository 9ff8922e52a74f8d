"""What steps: operations whose result jumps where an operand's last bit changes."""

from __future__ import annotations

from collections.abc import Iterable

from .graph import Node, below

_STEPS = ("lt", "le", "eq", "floor", "floordiv", "mod", "read")


def under_steps(nodes: Iterable[Node]) -> set[Node]:
    """Those of a graph's nodes that something reads which jumps: a comparison, or an index."""
    read = [arg for node in nodes if node.op in _STEPS for arg in node.args]
    read += [node.args[0] for node in nodes if node.op == "select"]
    return set(below(tuple(read)))


def is_invertible(divisor: Node) -> bool:
    """Whether it is a number whose reciprocal is a normal float32."""
    return divisor.is_const and 2.0**-120 < abs(divisor.real) < 2.0**120
