"""Params, constants and macros for tests of the language."""

from __future__ import annotations

from fagen.runtime.language import Define, Node, parse
from fagen.runtime.variant import Param

PARAMS = {
    param.name: param
    for param in (
        Param("slope", "f32", ("H",), grad=True),
        Param("slopes", "bf16", ("B", "H")),
        Param("key_slope", "f32", ("Hk",)),
        Param("doc", "i32", ("B", "n")),
        Param("line", "i64", ("n",)),
        Param("prefix", "i32", ("B",)),
        Param("glob", "bool", ("B", "n")),
        Param("b0", "f32", ()),
        Param("width", "i32", ()),
        Param("on", "bool", ()),
        Param("rel", "f32", ("H", "n")),
        Param("tree", "bool", ("B", "Sq", "Sq")),
        Param("bias", "f16", ("B", "H", "Sq", "Skv")),
        Param("table", "f32", (4, "n")),
    )
}
CONSTS = {"W": 64, "R": 3, "eps": -0.5, "wide": True}
DEFINES = {
    "local": Define(("n",), "causal and q - kv < n"),
    "near": Define(("a", "n"), "abs(a - kv) <= n"),
    "twice": Define(("x",), "x + x"),
    "mine": Define(("q",), "q * 2 + kv"),
    "outer": Define(("x",), "mine(x) + q"),
    "bare": Define((), "kv % W == 0"),
    "row": Define(("ids",), "ids[b, q]"),
    "same": Define(("ids",), "row(ids) == ids[b, kv]"),
    "loop": Define(("x",), "pool(x)"),
    "pool": Define(("x",), "loop(x + 1)"),
    "wrong": Define((), "q < kw"),
    "broken": Define(("n",), "q < (n"),
}


def read(text: str, expect: str = "mask") -> Node:
    return parse(text, params=PARAMS, consts=CONSTS, defines=DEFINES, expect=expect)
