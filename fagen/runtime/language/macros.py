"""Named pieces of expressions: the built-in ones, and the spec's own under ``define:``.

A macro's body is text in the same language over its parameters and everything an expression may name, never the
parameters of another macro (so it means the same wherever it is used). It may use other macros, not itself.

    causal                kv <= q
    window(left, right)   -left <= kv - q <= right: left + 1 + right keys; -1 or None leaves a side unbounded
    prefix(n)             causal, or among the first n keys; n of shape [B], a scalar or a number
    document(ids)         ids of the query and the key equal; ids of shape [B, n] or [n]
    softcap(c)            c * tanh(s / c)
    alibi(slope)          s - slope * abs(q - kv); slope of shape [H], [B, H] or [], or a number
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..shapes import shape_of
from ..variant import Param
from .nodes import Node, Number

# What a macro can be given: a value, a param to read entries of, or None where that means "no bound".
Argument = Node | Param | None


@dataclass(frozen=True)
class Define:
    """A macro of the spec: ``local(n)`` with ``text`` "causal and q - kv < n" has ``params`` ("n",)."""

    params: tuple[str, ...]
    text: str


class MacroError(ValueError):
    """An argument a built-in macro cannot take."""


@dataclass(frozen=True)
class BuiltIn:
    """A macro whose body depends on what its arguments are: ``body`` raises MacroError if it cannot take them."""

    params: tuple[str, ...]
    body: Callable[[Mapping[str, Argument]], str]


def _window(args: Mapping[str, Argument]) -> str:
    bounds = []
    for side, distance in (("left", "q - kv"), ("right", "kv - q")):
        arg = args[side]
        if isinstance(arg, Param):
            raise MacroError(f"`{side}` is a number of keys, but `{arg.name}` has {len(arg.shape)} dimensions")
        if arg is None:
            continue
        if arg.type != "int":
            raise MacroError(f"`{side}` is a number of keys: an integer, or -1 or None for no bound")
        if not isinstance(arg, Number):
            bounds.append(f"({side} < 0 or {distance} <= {side})")
        elif arg.value >= 0:
            bounds.append(f"{distance} <= {side}")
        elif arg.value != -1:
            raise MacroError(f"`{side}` is a number of keys, or -1 or None for no bound, but it is {arg.value}")
    return " and ".join(bounds) or "true"


def _prefix(args: Mapping[str, Argument]) -> str:
    return f"kv <= q or kv < {_entry('n', args['n'], {('B',): '[b]'}, 'int')}"


def _document(args: Mapping[str, Argument]) -> str:
    ids = args["ids"]
    if not isinstance(ids, Param):
        raise MacroError("`ids` is a param of shape [B, n] or [n], by its bare name")
    if len(ids.shape) == 1 and ids.shape[0] not in ("B", "H", "Hk"):
        return "ids[q] == ids[kv]"
    if len(ids.shape) == 2 and ids.shape[0] == "B":
        return "ids[b, q] == ids[b, kv]"
    raise MacroError(f"`ids` is a param of shape [B, n] or [n], but `{ids.name}` has shape {shape_of(ids)}")


def _softcap(args: Mapping[str, Argument]) -> str:
    c = args["c"]
    if c is None or isinstance(c, Param):
        raise MacroError("`c` is a number")
    if isinstance(c, Number) and not c.value > 0:
        raise MacroError(f"a cap is positive, but `c` is {c.value}; leave softcap out where there is none")
    return "c * tanh(s / c)"


def _alibi(args: Mapping[str, Argument]) -> str:
    slope = _entry("slope", args["slope"], {("H",): "[h]", ("B", "H"): "[b, h]"}, "real")
    return f"s - {slope} * abs(q - kv)"


def _entry(name: str, arg: Argument, forms: Mapping[tuple[str, ...], str], kind: str) -> str:
    """How the body writes an argument that is a value, or a param of one of a few shapes."""
    expected = f"`{name}` is {'an integer' if kind == 'int' else 'a number'}, or a param of shape " + " or ".join(
        f"[{', '.join(shape)}]" for shape in forms
    )
    if arg is None:
        raise MacroError(expected)
    if not isinstance(arg, Param):
        if arg.type == "bool" or (kind == "int" and arg.type != "int"):
            raise MacroError(expected)
        return name
    form = forms.get(tuple(map(str, arg.shape)))
    if form is None:
        raise MacroError(f"{expected}, but `{arg.name}` has shape {shape_of(arg)}")
    return name + form


BUILT_INS: dict[str, BuiltIn] = {
    "causal": BuiltIn((), lambda args: "kv <= q"),
    "window": BuiltIn(("left", "right"), _window),
    "prefix": BuiltIn(("n",), _prefix),
    "document": BuiltIn(("ids",), _document),
    "softcap": BuiltIn(("c",), _softcap),
    "alibi": BuiltIn(("slope",), _alibi),
}
