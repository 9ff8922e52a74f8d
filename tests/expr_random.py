"""Random masks and scores as text, from the whole grammar, and params to run them with."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from fagen.runtime.language import LanguageError, parse
from fagen.runtime.variant import Param

PARAMS = {
    param.name: param
    for param in (
        Param("c", "i32", ()),
        Param("t", "f32", (), grad=True),
        Param("flag", "bool", ()),
        Param("slope", "f32", ("H",), grad=True),
        Param("heat", "f32", ("B", "H"), grad=True),
        Param("left", "i32", ("B",)),
        Param("wide", "i64", ("B",)),
        Param("ids", "i32", ("B", "n")),
        Param("ids64", "i64", ("B", "n")),
        Param("glob", "bool", ("B", "n")),
        Param("at", "i32", ("n",)),
        Param("rel", "f32", ("H", "n"), grad=True),
        Param("f", "bf16", ("B", "H", "n"), grad=True),
        Param("half", "f16", ("n",), grad=True),
        Param("bias", "bf16", ("B", "H", "Sq", "Skv"), grad=True),
        Param("tree", "bool", ("B", "Sq", "Sq")),
    )
}
BATCH, HEADS = 2, 3

# Conditions whose tile test must be exact, alone and under any and/or/not.
_AFFINE = (
    "kv <= q",
    "q - kv < {n}",
    "kv - q <= {n}",
    "abs(q - kv) <= {n}",
    "abs(q - kv) > {n}",
    "kv < {n}",
    "kv >= left[b]",
    "kv < kv_len - {n}",
    "q >= {n}",
    "i < {n}",
    "2 * kv <= q + {n}",
    "3 * q - 2 * kv >= {n} - c",
    "q + kv < {n}",
    "kv // 4 <= {n}",
    "min(q, kv) >= {n}",
    "max(q - kv, 3) <= {n}",
    "q == kv",
    "q - kv != {n}",
    "{n} <= kv < 2 * {n}",
    "(kv if c > 2 else q) <= {n}",
    "j + {n} > i",
)


def affine_mask(source: random.Random, depth: int) -> str:
    """And, or, not of affine conditions."""
    if depth == 0:
        return "(" + source.choice(_AFFINE).replace("{n}", str(source.randint(-4, 24))) + ")"
    kind = source.choice(["and", "or", "and", "or", "not"])
    if kind == "not":
        return f"(not {affine_mask(source, depth - 1)})"
    parts = [affine_mask(source, source.randint(0, depth - 1)) for _ in range(source.choice([2, 2, 3]))]
    return "(" + f" {kind} ".join(parts) + ")"


def _integer(source: random.Random, depth: int) -> str:
    if depth == 0 or source.random() < 0.2:
        return source.choice(
            ["q", "kv", "q", "kv", "i", "j", "b", "h", "hk", "q_len", "kv_len", "c", str(source.randint(-9, 30))]
            + ["left[b]", "wide[b]", "ids[b, q]", "ids[b, kv]", "ids64[b, kv]", "at[kv]", "3000000000", "q - kv"]
        )
    below = [_integer(source, depth - 1) for _ in range(2)]
    return source.choice(
        [
            f"({below[0]} {source.choice(['+', '-', '*', '//', '%'])} {below[1]})",
            f"({below[0]} {source.choice(['//', '%'])} {source.choice([1, 2, 3, 4, -5, 64])})",
            f"{source.choice(['min', 'max'])}({below[0]}, {below[1]})",
            f"abs({below[0]})",
            f"(-{below[0]})",
            f"({below[0]}) ** 2",
            f"at[{below[0]}]",
            f"ids[b, {below[0]}]",
            f"({below[0]} if {_truth(source, depth - 1, False)} else {below[1]})",
        ]
    )


def _real(source: random.Random, depth: int, score: bool) -> str:
    if depth == 0 or source.random() < 0.15:
        leaves = ["t", "slope[h]", "f[b, h, kv]", "f[b, h, q]", "half[kv]", "rel[h, q - kv + kv_len]"]
        leaves += ["rel[h, kv - q]", "bias[b, h, i, j]", "0.5", "-1.25", "1e-3", "7.0"]
        return source.choice(leaves + ["s"] * 8 if score else leaves)
    below = [_real(source, depth - 1, score) for _ in range(2)]
    either = source.choice([below[1], _integer(source, depth - 1)])
    return source.choice(
        [
            f"({below[0]} {source.choice(['+', '-', '*', '/'])} {either})",
            f"({either} {source.choice(['+', '-', '*'])} {below[0]})",
            f"{source.choice(['tanh', 'sigmoid', 'softplus', 'exp', 'sin'])}({below[0]} / 4)",
            f"sqrt(abs({below[0]}))",
            f"log(1 + abs({below[0]}))",
            f"{source.choice(['min', 'max'])}({below[0]}, {either})",
            f"abs({below[0]})",
            f"({below[0]}) ** {source.choice([2, 3])}",
            f"({below[0]} if {_truth(source, depth - 1, score)} else {either})",
            f"floor({below[0]})",
        ]
    )


def _truth(source: random.Random, depth: int, score: bool) -> str:
    if depth == 0 or source.random() < 0.1:
        return source.choice(
            ["flag", "glob[b, q]", "glob[b, kv]", "tree[b, i, j]", "tree[b, i, kv - (kv_len - q_len)]", "causal"]
            + ["document(ids)", "document(ids64)", "window(7, 2)", "kv < left[b]", "kv < wide[b]", "at[j] <= at[i]"]
        )
    compare = source.choice(["<", "<=", ">", ">=", "==", "!="])
    kind = source.random()
    if kind < 0.4:
        return f"({_integer(source, depth - 1)} {compare} {_integer(source, depth - 1)})"
    if kind < 0.55:
        return f"({_real(source, depth - 1, score)} {compare} {_real(source, depth - 1, score)})"
    below = [_truth(source, depth - 1, score) for _ in range(3)]
    return source.choice(
        [
            f"({below[0]} and {below[1]})",
            f"({below[0]} or {below[1]} or {below[2]})",
            f"(not {below[0]})",
            f"({below[0]} == {below[1]})",
            f"({below[0]} if {below[1]} else {below[2]})",
        ]
    )


def _valid(text: str, expect: str) -> bool:
    try:
        parse(text, params=PARAMS, expect=expect)  # type: ignore[arg-type]
    except LanguageError:  # such as integer constants past 64 bits
        return False
    return True


def masks(count: int, seed: int, depth: int = 3) -> list[str]:
    """Masks from the whole grammar."""
    source = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        text = _truth(source, source.randint(1, depth), False)
        if _valid(text, "mask"):
            found.append(text)
    return found


def scores(count: int, seed: int, depth: int = 3) -> list[str]:
    """Scores from the whole grammar."""
    source = random.Random(seed)
    found: list[str] = []
    while len(found) < count:
        text = _real(source, source.randint(1, depth), True)
        if _valid(text, "score"):
            found.append(text)
    return found


def arrays(rng: np.random.Generator, q_len: int, kv_len: int, n: int) -> dict[str, Any]:
    """Entries for PARAMS; bf16 ones as uint16."""

    def real(*shape: int) -> Any:
        return np.asarray(rng.normal(size=shape), np.float32)

    def bf16(*shape: int) -> Any:
        return (np.atleast_1d(real(*shape)).view(np.uint32) >> 16).astype(np.uint16).reshape(shape)

    def integers(low: int, high: int, *shape: int) -> Any:
        return np.asarray(rng.integers(low, high, shape))

    return {
        "c": integers(-3, 9).astype(np.int32),
        "t": real(),
        "flag": integers(0, 2).astype(bool),
        "slope": real(HEADS),
        "heat": real(BATCH, HEADS),
        "left": integers(-2, 30, BATCH).astype(np.int32),
        "wide": np.asarray(rng.choice([-(2**63), -1, 0, 5, 12, 2**63 - 1], BATCH)),
        "ids": np.sort(integers(-1, 4, BATCH, n), 1).astype(np.int32),
        "ids64": integers(0, 3, BATCH, n) * 10**12,
        "glob": integers(0, 6, BATCH, n) == 0,
        "at": integers(-2, n + 3, n).astype(np.int32),
        "rel": real(HEADS, n),
        "f": bf16(BATCH, HEADS, n),
        "half": real(n).astype(np.float16),
        "bias": bf16(BATCH, HEADS, q_len, kv_len),
        "tree": integers(0, 2, BATCH, q_len, q_len).astype(bool),
    }


def as_floats(params: dict[str, Any]) -> dict[str, Any]:
    """The same entries with bf16 ones as float32."""
    return {
        name: (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array
        for name, array in params.items()
    }
