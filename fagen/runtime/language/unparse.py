"""Tree to text, with no more parentheses than it takes to read the same tree back."""

from __future__ import annotations

from .nodes import Binary, Call, Compare, Conditional, Logic, Name, Node, Not, Number, Read, Unary

# How tightly a node holds together: a looser one needs parentheses inside a tighter one.
_CONDITIONAL, _OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _MINUS, _POWER, _ATOM = range(10)
_BINARY = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "//": _PRODUCT, "%": _PRODUCT, "**": _POWER}


def _strength(node: Node) -> int:
    match node:
        case Number(value=value):
            return _MINUS if not isinstance(value, bool) and value < 0 else _ATOM
        case Name() | Read() | Call():
            return _ATOM
        case Unary():
            return _MINUS
        case Binary(op=op):
            return _BINARY[op]
        case Compare():
            return _COMPARE
        case Not():
            return _NOT
        case Logic(op=op):
            return _AND if op == "and" else _OR
        case Conditional():
            return _CONDITIONAL


def _inside(node: Node, least: int) -> str:
    text = unparse(node)
    return text if _strength(node) >= least else f"({text})"


def unparse(node: Node) -> str:
    """The text of a tree: ``parse(unparse(node), ...) == node``."""
    match node:
        case Number(value=bool(value)):
            return "true" if value else "false"
        case Number(value=value):
            return repr(value)
        case Name(id=name):
            return name
        case Read(param=param, indices=indices):
            return f"{param}[{', '.join(map(unparse, indices))}]"
        case Call(function=function, args=args):
            return f"{function}({', '.join(map(unparse, args))})"
        case Unary(x=x):
            return f"-{_inside(x, _POWER)}"
        case Binary(op="**", left=left, right=right):
            return f"{_inside(left, _ATOM)} ** {_inside(right, _MINUS)}"
        case Binary(op=op, left=left, right=right):
            strength = _BINARY[op]
            return f"{_inside(left, strength)} {op} {_inside(right, strength + 1)}"
        case Compare(op=op, left=left, right=right):
            return f"{_inside(left, _SUM)} {op} {_inside(right, _SUM)}"
        case Not(x=x):
            return f"not {_inside(x, _NOT)}"
        case Logic(op=op, args=args):
            strength = _strength(node) + 1
            return f" {op} ".join(_inside(arg, strength) for arg in args)
        case Conditional(test=test, yes=yes, no=no):
            return f"{_inside(yes, _OR)} if {_inside(test, _OR)} else {_inside(no, _CONDITIONAL)}"
