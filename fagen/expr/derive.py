"""Derivatives, by a rule for each operation that stays finite wherever the derivative is.

Forward mode, one variable at a time (``s``, or one read of a param): the derivative of ``a if c else b`` is
``a' if c else b'``, so a NaN in the branch not taken stays there, which multiplying an adjoint by 0 would not do.

At kinks: abs has derivative 0 at 0, min and max follow their first argument on ties; floor, // and % have 0.
"""

from __future__ import annotations

from .graph import Graph, Node, below

_LOG_2 = 0.6931471805599453


def derivative(graph: Graph, root: Node, variable: Node) -> Node:
    """The node of d root / d variable; the constant 0.0 where root does not depend on it smoothly."""
    zero = graph.real(0.0)
    slopes: dict[Node, Node] = {}
    for node in below((root,)):
        if node is variable:
            slopes[node] = graph.real(1.0)
        else:
            constant = node.type != "real" or all(slopes[arg] is zero for arg in node.args if arg.type == "real")
            slopes[node] = zero if constant else _rule(graph, node, slopes)
    return slopes[root]


def _scaled(graph: Graph, slope: Node, factor: Node) -> Node:
    """slope · factor, where a slope of exactly 0 means no dependence at all."""
    return slope if slope.is_const and slope.value == 0.0 else graph.mul(slope, factor)


def _sum(graph: Graph, a: Node, b: Node) -> Node:
    if a.is_const and a.value == 0.0:
        return b
    return a if b.is_const and b.value == 0.0 else graph.add(a, b)


def _minus(graph: Graph, slope: Node) -> Node:
    return slope if slope.is_const and slope.value == 0.0 else graph.neg(slope)


def _rule(graph: Graph, node: Node, slopes: dict[Node, Node]) -> Node:
    real = graph.real
    a, b = node.args[0], node.args[-1]
    da, db = slopes.get(a, real(0.0)), slopes.get(b, real(0.0))
    match node.op:
        case "neg":
            return _minus(graph, da)
        case "add":
            return _sum(graph, da, db)
        case "sub":
            return _sum(graph, da, _minus(graph, db))
        case "mul":
            return _sum(graph, _scaled(graph, da, b), _scaled(graph, db, a))
        case "div":  # (a / b)' = (a' - (a / b) b') / b
            return graph.div(_sum(graph, da, _minus(graph, _scaled(graph, db, node))), b)
        case "pow":
            return _power_rule(graph, node, da, db)
        case "abs":
            signed = graph.select(graph.compare("lt", a, real(0.0)), graph.neg(da), da)
            return graph.select(graph.compare("eq", a, real(0.0)), real(0.0), signed)
        case "min":
            return graph.select(graph.compare("le", a, b), da, db)
        case "max":
            return graph.select(graph.compare("le", b, a), da, db)
        case "select":
            return graph.select(a, slopes[node.args[1]], slopes[node.args[2]])
        case "floor" | "floordiv" | "mod":
            return real(0.0)
        case "exp":
            return graph.mul(da, node)
        case "exp2":
            return graph.mul(da, graph.mul(node, real(_LOG_2)))
        case "log":
            return graph.div(da, a)
        case "log2":
            return graph.div(da, graph.mul(a, real(_LOG_2)))
        case "sqrt":
            return graph.div(da, graph.mul(real(2.0), node))
        case "tanh":
            return graph.mul(da, graph.sub(real(1.0), graph.mul(node, node)))
        case "sigmoid":  # 1 - sigmoid(a) would lose all its digits for large a
            return graph.mul(da, graph.mul(node, graph.function("sigmoid", graph.neg(a))))
        case "softplus":
            return graph.mul(da, graph.function("sigmoid", a))
        case "sin":
            return graph.mul(da, graph.function("cos", a))
        case "cos":
            return graph.neg(graph.mul(da, graph.function("sin", a)))
    raise AssertionError(f"no derivative of {node.op}")


def _power_rule(graph: Graph, node: Node, da: Node, db: Node) -> Node:
    """(a^b)' = b a^(b-1) a' + a^b log(a) b'; the second part is 0 where a is 0, as a^b is there for b > 0."""
    a, b = node.args
    lowered = graph.arithmetic("pow", a, graph.sub(b, graph.real(1.0)))
    by_base = _scaled(graph, da, graph.mul(b, lowered))
    if db.is_const and db.value == 0.0:
        return by_base
    growth = graph.mul(node, graph.function("log", a))
    at_zero = graph.compare("eq", a, graph.real(0.0))
    return _sum(graph, by_base, graph.mul(db, graph.select(at_zero, graph.real(0.0), growth)))
