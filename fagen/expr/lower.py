"""From the parse tree of an expression to the graph."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import PlanError
from ..runtime.language import nodes as tree
from ..runtime.language.extents import element_type
from ..runtime.variant import Param
from .graph import Graph, Node

_ARITHMETIC = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}
# A kernel's comparisons: > and >= are < and <= with their sides exchanged, which NaN respects.
_COMPARISONS = {"<": ("lt", False), "<=": ("le", False), ">": ("lt", True), ">=": ("le", True), "==": ("eq", False)}
_MULTIPLIED_OUT = 4  # a real number's powers up to this one are products; beyond it they go through pow


def lower(graph: Graph, root: tree.Node, params: Mapping[str, Param]) -> Node:
    """The graph node that computes an expression.

    Raises PlanError where it holds an integer that no 64-bit number can.
    """
    done: dict[int, Node] = {}
    # A tree may be as deep as the language's depth cap allows: no recursion.
    stack: list[tuple[tree.Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if id(node) in done:
            continue
        if ready:
            done[id(node)] = _lower_one(graph, node, params, done)
        else:
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(tree.children(node)))  # numbered as they are written
    return done[id(root)]


def _lower_one(graph: Graph, node: tree.Node, params: Mapping[str, Param], done: Mapping[int, Node]) -> Node:
    match node:
        case tree.Number(value=bool(value)):
            return graph.truth(value)
        case tree.Number(value=int(value)):
            return graph.integer(value)
        case tree.Number(value=value):
            return graph.real(value)
        case tree.Name(id=name):
            return graph.read(name, (), element_type(params[name])) if name in params else graph.name(name)
        case tree.Read(param=name, indices=indices):
            return graph.read(name, tuple(done[id(index)] for index in indices), element_type(params[name]))
        case tree.Unary(x=x):
            return graph.neg(done[id(x)])
        case tree.Binary(op="/", left=left, right=right):
            return graph.div(done[id(left)], done[id(right)])
        case tree.Binary(op="**", left=left, right=right):
            return _power(graph, done[id(left)], done[id(right)])
        case tree.Binary(op=op, left=left, right=right):
            return graph.arithmetic(_ARITHMETIC[op], done[id(left)], done[id(right)])
        case tree.Compare(op="!=", left=left, right=right):
            return graph.not_(graph.compare("eq", done[id(left)], done[id(right)]))
        case tree.Compare(op=op, left=left, right=right):
            name, exchanged = _COMPARISONS[op]
            a, b = done[id(left)], done[id(right)]
            return graph.compare(name, b, a) if exchanged else graph.compare(name, a, b)
        case tree.Logic(op=op, args=args):
            return graph.logic(op, tuple(done[id(arg)] for arg in args))
        case tree.Not(x=x):
            return graph.not_(done[id(x)])
        case tree.Conditional(test=test, yes=yes, no=no):
            return graph.select(done[id(test)], done[id(yes)], done[id(no)])
        case tree.Call(function=name, args=args):
            values = tuple(done[id(arg)] for arg in args)
            if name in ("min", "max", "abs", "floor"):
                return graph.arithmetic(name, *values)
            return graph.function(name, values[0])
    raise PlanError(f"the expression holds {type(node).__name__}, which kernels do not know")


def _power(graph: Graph, base: Node, exponent: Node) -> Node:
    if exponent.is_const and exponent.type == "int":
        n = exponent.integer
        if base.type == "int" and n >= 0:
            return graph.power(base, n) if n else graph.integer(1)
    else:
        whole = exponent.is_const and exponent.real.is_integer() and abs(exponent.real) <= _MULTIPLIED_OUT
        n = int(exponent.real) if whole else _MULTIPLIED_OUT + 1
    if abs(n) > _MULTIPLIED_OUT:
        return graph.arithmetic("pow", graph.to_real(base), graph.to_real(exponent))
    if n == 0:
        return graph.real(1.0)
    product = graph.power(graph.to_real(base), abs(n))
    return product if n > 0 else graph.div(graph.real(1.0), product)
