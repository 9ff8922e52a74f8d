"""Graph nodes evaluated in numpy, for the tests of derivatives: float64, any shape, NaN and infinities as they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fagen.expr.graph import Node, below

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "to_real": lambda x: np.asarray(x, np.float64),
    "neg": np.negative,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.remainder,
    "pow": np.power,
    "min": lambda a, b: np.where(a <= b, a, b),
    "max": lambda a, b: np.where(a >= b, a, b),
    "sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-abs(x))), np.exp(-abs(x)) / (1 + np.exp(-abs(x)))),
    "softplus": lambda x: np.logaddexp(x, 0.0),
    "lt": np.less,
    "le": np.less_equal,
    "eq": np.equal,
    "and": lambda *args: np.logical_and.reduce(np.broadcast_arrays(*args)),
    "or": lambda *args: np.logical_or.reduce(np.broadcast_arrays(*args)),
    "not": np.logical_not,
    "select": np.where,
    "fma": lambda a, b, c: a * b + c,
}


def value(root: Node, bound: Mapping[Node, Any]) -> Any:
    """The value of a node; ``bound`` gives those of names and reads."""
    done = dict(bound)
    with np.errstate(all="ignore"):
        for node in below((root,)):
            if node.is_const:
                done[node] = np.asarray(node.value)
            elif node not in done:
                function = _OPERATIONS.get(node.op) or getattr(np, node.op)
                done[node] = function(*(done[arg] for arg in node.args))
    return done[root]
