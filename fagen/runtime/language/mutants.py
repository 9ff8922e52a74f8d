"""The same expression with one mistake in it: what a check has to be able to tell from the right one."""

from __future__ import annotations

from collections.abc import Iterator

from .canonical import canonical
from .construct import MAX_INTEGER, MAX_REAL, NumberError, binary, call, logic, negative, number
from .nodes import (
    NAMES,
    TRUE,
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
    children,
    with_children,
)
from .unparse import unparse

Mutant = tuple[str, Node]

_COMPARISONS = {
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "==": ("!=", "<=", ">="),
    "!=": ("==",),
}
_ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "%", "%": "//"}
_FUNCTIONS = {
    "min": "max",
    "max": "min",
    "exp": "exp2",
    "exp2": "exp",
    "log": "log2",
    "log2": "log",
    "tanh": "sigmoid",
    "sigmoid": "tanh",
    "softplus": "sigmoid",
    "sin": "cos",
    "cos": "sin",
}
_NAMES = {"q": ("kv", "i"), "kv": ("q",), "i": ("j",), "j": ("i",), "q_len": ("kv_len",), "kv_len": ("q_len",)}
_SCALE = 1.25


def mutants(node: Node) -> list[Mutant]:
    """Each as a short description and its tree; none is provably the same function as ``node`` or as another.

    A mask's include "no mask" (it is always true), a score's "no score" (it is ``s``). Each can be written out and
    read back. Some may still be the same function for all inputs that can occur; ``i`` for ``q`` is, where
    positions start at the top left.
    """
    found: dict[str, Mutant] = {}
    original = canonical(node)
    whole: Mutant = ("no mask", TRUE) if node.type == "bool" else ("no score change", Name("s", "real"))
    for description, mutant in [whole, *_mutants(node)]:
        text = canonical(mutant)
        if text != original:
            found.setdefault(text, (description, mutant))
    return list(found.values())


def _mutants(node: Node) -> Iterator[Mutant]:
    """All of them, some equal; a node's own first, then those below it."""
    for attempt in _own(node):
        yield from attempt
    below = children(node)
    for k, child in enumerate(below):
        for description, mutant in _mutants(child):
            try:
                yield description, _rebuilt(node, (*below[:k], mutant, *below[k + 1 :]))
            except NumberError:  # such as a division by the constant 0
                continue


def _own(node: Node) -> Iterator[list[Mutant]]:
    """The mistakes one can make in a node itself."""
    match node:
        case Number(value=bool(value)):
            yield [(f"{unparse(node)} -> {unparse(Number(not value))}", Number(not value))]
        case Number(value=int(value)):
            yield [_changed(node, number(value + step)) for step in (1, -1) if abs(value + step) <= MAX_INTEGER]
        case Number(value=value):
            scaled = value * _SCALE if abs(value) < 1 / _SCALE * MAX_REAL else value / _SCALE
            yield [_changed(node, Number(scaled or 1.0))]
        case Name(id=name, type="int"):
            yield [_changed(node, Name(other)) for other in _NAMES.get(name, ())]
            yield [_changed(node, binary(op, node, Number(1))) for op in "+-"]
        case Name(type="bool"):
            yield [_changed(node, Not(node))]
        case Name(id=name) if name not in NAMES:
            yield [_changed(node, Binary("*", node, Number(_SCALE)))]
        case Read(indices=indices):
            yield from (_read_at(node, k, index) for k, index in enumerate(indices))
        case Unary(x=x) | Not(x=x):
            yield [_changed(node, x)]
        case Binary(op=op, left=left, right=right):
            yield [_changed(node, side) for side in (left, right) if side.type == node.type or node.type == "real"]
            if op in _ARITHMETIC:
                yield _attempt(node, _ARITHMETIC[op], left, right)
            if op == "-":
                yield _attempt(node, "-", right, left)
        case Compare(op=op, left=left, right=right):
            others = _COMPARISONS[op] if left.type != "bool" else _COMPARISONS[op][:1]
            yield [_changed(node, Compare(other, left, right)) for other in others]
        case Logic(op=op, args=args):
            yield [(f"without `{_short(arg)}`", logic(op, [*args[:k], *args[k + 1 :]])) for k, arg in enumerate(args)]
            yield [_changed(node, logic("or" if op == "and" else "and", list(args)))]
        case Conditional(test=test, yes=yes, no=no):
            yield [_changed(node, branch) for branch in (yes, no) if branch.type == node.type or node.type == "real"]
            yield [_changed(node, Conditional(test, no, yes))]
        case Call(function=function, args=args):
            if function in _FUNCTIONS:
                yield [_changed(node, call(_FUNCTIONS[function], args))]
            yield [_changed(node, arg) for arg in args]


def _read_at(node: Read, k: int, index: Node) -> list[Mutant]:
    """An entry read from elsewhere in one dimension."""
    others = [binary("+", index, Number(1)), binary("-", index, Number(1))]
    if index != Number(0):
        others.append(Number(0))
    return [
        _changed(node, Read(node.param, (*node.indices[:k], other, *node.indices[k + 1 :]), node.type))
        for other in others
    ]


def _attempt(node: Node, op: str, left: Node, right: Node) -> list[Mutant]:
    try:
        changed = binary(op, left, right)
    except NumberError:
        return []
    # `/` instead of `*` makes an integer real, which an index or a macro's bound cannot be.
    return [_changed(node, changed)] if changed.type == node.type else []


def _changed(node: Node, changed: Node) -> Mutant:
    return f"`{_short(node)}` -> `{_short(changed)}`", changed


def _short(node: Node) -> str:
    text = unparse(node)
    return text if len(text) <= 48 else text[:45] + "..."


def _rebuilt(node: Node, below: tuple[Node, ...]) -> Node:
    """The node with other children, as parse() would make it of them. NumberError where it would refuse."""
    match node:
        case Binary(op=op):
            return binary(op, below[0], below[1])
        case Unary():
            return negative(below[0])
        case Logic(op=op):
            return logic(op, list(below))
        case Call(function=function):
            return call(function, below)
        case Read(indices=indices):
            # A bare name in place of a longer index might not belong to the extent, which parse() would refuse.
            indices = tuple(
                binary("+", new, Number(0)) if isinstance(new, Name) and not isinstance(old, Name) else new
                for old, new in zip(indices, below, strict=True)
            )
            return Read(node.param, indices, node.type)
        case _:
            return with_children(node, below)
