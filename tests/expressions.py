"""Random expressions for hypothesis, and their value at one pair in plain Python."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from fagen.runtime.language.construct import NumberError, binary, call, logic, negative
from fagen.runtime.language.nodes import (
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
from fagen.runtime.variant import Param

PARAMS = {
    param.name: param
    for param in (
        Param("n", "i32", ()),
        Param("t", "f32", (), grad=True),
        Param("flag", "bool", ()),
        Param("ids", "i32", ("B", "n")),
        Param("at", "i64", ("n",)),
        Param("on", "bool", ("B", "n")),
        Param("slope", "f32", ("H",), grad=True),
        Param("f", "f32", ("B", "H", "n"), grad=True),
    )
}
_INTEGER_NAMES = ("b", "h", "hk", "i", "j", "q", "kv", "q_len", "kv_len", "n")


def _built(make: Callable[..., Node], *parts: st.SearchStrategy) -> st.SearchStrategy[Node]:
    """What ``make`` makes of the parts; the first of them where parse() would refuse the result."""

    def attempt(*args: object) -> Node:
        try:
            return make(*args)
        except NumberError:
            return next(arg for arg in args if not isinstance(arg, str))  # type: ignore[return-value]

    return st.builds(attempt, *parts)


def _fits(node: Node) -> Node:
    """Indices must not be bare names that do not belong to their extent."""
    return binary("+", node, Number(0)) if isinstance(node, Name) else node


_small = st.integers(-6, 6).map(Number)
_integer_leaf = st.sampled_from([Name(name) for name in _INTEGER_NAMES]) | _small
_real_leaf = (
    st.sampled_from([Name("s", "real"), Name("t", "real")])
    | st.sampled_from([-1.5, 0.25, 0.0, 3.0, 1e-3]).map(Number)
    | st.just(Read("slope", (Name("h"),), "real"))
)
_truth_leaf = st.sampled_from([Name("flag", "bool"), Number(True), Number(False)]) | st.just(
    Read("on", (Name("b"), Name("kv")), "bool")
)


def _integers(depth: int) -> st.SearchStrategy[Node]:
    if depth == 0:
        return _integer_leaf
    below = _integers(depth - 1)
    return (
        _integer_leaf
        | _built(binary, st.sampled_from(["+", "-", "*", "//", "%"]), below, below)
        | _built(lambda x, n: binary("**", x, Number(n)), below, st.integers(0, 3))
        | _built(negative, below)
        | _built(lambda x: call("abs", (x,)), below)
        | _built(lambda f, a, b: call(f, (a, b)), st.sampled_from(["min", "max"]), below, below)
        | _built(lambda x: Read("at", (x,), "int"), below)
        | _built(lambda x: Read("ids", (Name("b"), x), "int"), below)
        | _built(Conditional, truths(depth - 1, False), below, below)
    )


def _reals(depth: int, score: bool) -> st.SearchStrategy[Node]:
    leaf = _real_leaf if score else _real_leaf.filter(lambda node: node != Name("s", "real"))
    if depth == 0:
        return leaf
    below = _reals(depth - 1, score)
    either = below | _integers(depth - 1)
    return (
        leaf
        | _built(binary, st.sampled_from(["+", "-", "*", "/", "//", "%"]), below, either)
        | _built(binary, st.sampled_from(["+", "-", "*", "/"]), either, below)
        | _built(lambda x, n: binary("**", x, Number(n)), below, st.integers(-2, 3))
        | _built(negative, below)
        | _built(
            lambda f, x: call(f, (x,)), st.sampled_from(["abs", "floor", "tanh", "sigmoid", "exp", "sqrt"]), either
        ).filter(lambda node: node.type == "real")
        | _built(lambda f, a, b: call(f, (a, b)), st.sampled_from(["min", "max"]), below, either)
        | _built(lambda x: Read("f", (Name("b"), Name("h"), x), "real"), _integers(depth - 1))
        | _built(Conditional, truths(depth - 1, score), below, either)
    )


def truths(depth: int, score: bool = False) -> st.SearchStrategy[Node]:
    """Truth values; with ``score`` they may read s."""
    if depth == 0:
        return _truth_leaf
    below = truths(depth - 1, score)
    compare = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    integers = _integers(depth - 1)
    return (
        _truth_leaf
        | st.builds(Compare, compare, integers, integers)
        | st.builds(Compare, compare, integers, integers)
        | st.builds(Compare, compare, _reals(depth - 1, score), integers | _reals(depth - 1, score))
        | st.builds(Compare, st.sampled_from(["==", "!="]), below, below)
        | st.builds(logic, st.sampled_from(["and", "or"]), st.lists(below, min_size=2, max_size=3))
        | st.builds(Not, below)
        | st.builds(Conditional, below, below, below)
    )


def masks(depth: int = 3) -> st.SearchStrategy[Node]:
    """Trees parse() can give with expect="mask" and the params PARAMS."""
    return truths(depth)


def scores(depth: int = 3) -> st.SearchStrategy[Node]:
    """Trees parse() can give with expect="score"."""
    return _reals(depth, True)


@dataclass
class Point:
    """One pair: what names and params are there. A param's entries are made up as they are read."""

    names: dict[str, object]
    extent: int
    seed: int
    entries: dict[tuple[str, tuple[int, ...]], object] = field(default_factory=dict)

    def read(self, name: str, indices: tuple[int, ...], kind: str) -> object:
        if not all(0 <= index < self.extent for index in indices):
            return {"bool": False, "int": 0, "real": np.float64(0)}[kind]
        key = (name, indices)
        if key not in self.entries:
            source = random.Random(f"{self.seed}{key}")
            value = {
                "bool": source.random() < 0.5,
                "int": source.randint(-1, 5),
                "real": np.float64(source.choice([-2.0, -0.5, 0.0, 1.0, 0.3])),
            }
            self.entries[key] = value[kind]
        return self.entries[key]


def points(count: int = 40, seed: int = 0) -> list[Point]:
    """Pairs of all kinds, some positions negative."""
    source = random.Random(seed)
    result = []
    for k in range(count):
        names: dict[str, object] = {name: source.randint(0, 3) for name in ("b", "h", "hk")}
        names |= {name: source.randint(0, 9) for name in ("i", "j", "kv", "q_len", "kv_len")}
        names |= {"q": source.randint(-5, 9), "n": source.randint(-3, 6), "flag": source.random() < 0.5}
        names |= {name: np.float64(source.choice([-3.0, -0.1, 0.0, 0.7, 2.0, 60.0])) for name in ("s", "t")}
        result.append(Point(names, 6, seed + k))
    return result


_BINARY: dict[str, Callable] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: np.float64(a) / np.float64(b),
}
_COMPARE: dict[str, Callable] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}
_CALL: dict[str, Callable] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "sin": np.sin,
    "cos": np.cos,
}


def value(node: Node, at: Point) -> object:
    """The value of a tree at a pair, from the language's definition: bool, int or np.float64."""
    with np.errstate(all="ignore"):
        result = _value(node, at)
    return np.float64(result) if node.type == "real" else result


def _value(node: Node, at: Point) -> object:
    def of(below: Node) -> object:
        result = _value(below, at)
        return np.float64(result) if node.type == "real" and below.type == "int" else result

    match node:
        case Number(value=constant):
            return np.float64(constant) if node.type == "real" else constant
        case Name(id=name):
            return at.names[name]
        case Read(param=name, indices=indices):
            return at.read(name, tuple(_value(index, at) for index in indices), node.type)  # type: ignore[misc]
        case Unary(x=x):
            return -of(x)  # type: ignore[operator]
        case Binary(op="**", left=left, right=right):
            exponent = _value(right, at)
            return of(left) ** (exponent if right.type == "int" else np.float64(exponent))  # type: ignore[operator]
        case Binary(op="//" | "%", left=left, right=right):
            a, b = of(left), of(right)
            if node.type == "int" and b == 0:
                return 0
            return a // b if node.op == "//" else a % b  # type: ignore[operator]
        case Binary(op=op, left=left, right=right):
            return _BINARY[op](of(left), of(right))
        case Compare(op=op, left=left, right=right):
            a, b = _value(left, at), _value(right, at)
            if left.type != right.type:
                a, b = np.float64(a), np.float64(b)  # type: ignore[arg-type]
            return bool(_COMPARE[op](a, b))
        case Logic(op=op, args=args):
            return (all if op == "and" else any)([_value(arg, at) for arg in args])
        case Not(x=x):
            return not _value(x, at)
        case Conditional(test=test, yes=yes, no=no):
            return of(yes) if _value(test, at) else of(no)
        case Call(function="min" | "max" as function, args=(left, right)):
            a, b = of(left), of(right)
            first = (a <= b if function == "min" else a >= b) or a != a  # type: ignore[operator]
            return a if first else b
        case Call(function="abs", args=(x,)):
            return abs(of(x))  # type: ignore[arg-type]
        case Call(function="floor", args=(x,)):
            found = of(x)
            return np.floor(found) if node.type == "real" else found  # type: ignore[call-overload]
        case Call(function=function, args=(x,)):
            return _CALL[function](np.float64(_value(x, at)))  # type: ignore[arg-type]
    raise TypeError(node)
