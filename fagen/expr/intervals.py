"""Walks a node over a tile, step by step, in the arithmetic of intervals.

The steps are named once, here; a Backend carries them out, in Python on numbers or as printed C++.
"""

from __future__ import annotations

from typing import Any, Protocol

from .graph import Node
from .sizes import INT64, Sizes

# The step for an operation: an operator, or the name of a function in bounds.h and in bounds.py.
_STEPS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "neg": "-",
    "floordiv": "quotient",
    "mod": "remainder",
    "min": "lesser",
    "max": "greater",
    "abs": "magnitude",
    "floor": "whole_below",
    "pow": "power",
    "sin": "wave",
    "cos": "wave",
    "select": "choose",
    "to_real": "reals",
    "lt": "less",
    "le": "less_equal",
    "eq": "equal",
    "not": "!",
    "and": "&",
    "or": "|",
}
_KINDS = {"int": "Span", "real": "Reals", "bool": "Tri"}


class Backend(Protocol):
    """What carries the steps out. A value is text or a number: whatever the backend makes of it."""

    def position(self, name: str) -> Any:
        """The Span of q or kv."""

    def exact(self, node: Node) -> Any:
        """A Span or Tri of one value: of an integer or truth value that is the same for all pairs."""

    def constant(self, value: float) -> Any:
        """The Reals of one constant."""

    def step(self, kind: str, step: str, arguments: list[Any], node: Node) -> Any:
        """A step that gives a Span, Reals or Tri; ``node`` is what it computes."""

    def hull(self, kind: str, param: str, indices: list[Any], node: Node) -> Any:
        """What a param's entries in a box of indexes can be: a Span (0 and 1 for truth values) or Reals."""


class Walker:
    """Walks nodes over one tile; ``sizes`` are of the params that the nodes read."""

    def __init__(self, backend: Backend, sizes: Sizes):
        self._backend = backend
        self._sizes = sizes
        self._done: dict[Node, Any] = {}
        self._exact: dict[Node, bool] = {}

    def is_exact(self, node: Node) -> bool:
        """Whether a node is one integer or truth value for all pairs, computed from such alone."""
        if node not in self._exact:
            own = node.type != "real" and not (node.op == "name" and node.value in ("q", "kv"))
            self._exact[node] = own and all(self.is_exact(arg) for arg in node.args)
        return self._exact[node]

    def can_walk(self, *nodes: Node) -> bool:
        """Whether no integer on the way can pass 64 bits; where one can, nothing is known of the nodes."""
        stack, seen = list(nodes), set(nodes)
        while stack:
            node = stack.pop()
            if node.type == "int" and not self._sizes.fits(node, INT64):
                return False
            if not self.is_exact(node):
                more = set(node.args) - seen
                seen |= more
                stack += more
        return True

    def walk(self, node: Node) -> Any:
        """The Span, Reals or Tri of a node, which can be walked."""
        if node not in self._done:
            self._done[node] = self._walk(node)
        return self._done[node]

    def _walk(self, node: Node) -> Any:
        backend = self._backend
        if self.is_exact(node):
            return backend.exact(node)
        if node.op == "name":
            return backend.position(str(node.value))
        if node.op == "const":
            return backend.constant(node.real)
        kind = _KINDS[node.type]
        if node.op == "read":
            indices = [self.walk(index) for index in node.args]
            if node.type != "bool":
                return backend.hull(kind, str(node.value), indices, node)
            return backend.step(kind, "is_true", [backend.hull("Span", str(node.value), indices, node)], node)
        if node.op == "mul" and node.args[0] is node.args[1]:
            return backend.step(kind, "square", [self.walk(node.args[0])], node)
        if node.op == "eq" and node.args[0].type == "bool":
            return backend.step(kind, "same", [self.walk(arg) for arg in node.args], node)
        step = _STEPS.get(node.op, node.op)
        if node.op in ("and", "or"):
            value = self.walk(node.args[0])
            for arg in node.args[1:]:
                value = backend.step(kind, step, [value, self.walk(arg)], node)
            return value
        return backend.step(kind, step, [self.walk(arg) for arg in node.args], node)
