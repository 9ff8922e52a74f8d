"""The words of a refusal: what was asked, what to add to the spec, what comes nearest."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from .language.nodes import Name, Node, Read, walk
from .request import Request
from .variant import Param, Variant

_SHOWN = 3
_EXTENTS = {"b": "B", "h": "H", "hk": "Hk", "i": "Sq", "j": "Skv"}


def describe(request: Request) -> str:
    """`head_dim 96, f32, mask `causal``."""
    parts = [f"head_dim {request.head_dim}"]
    if request.value_dim != request.head_dim:
        parts.append(f"value_dim {request.value_dim}")
    parts.append(request.dtype)
    parts += [
        f"{what} `{text}`" for what, text in (("mask", request.mask), ("score", request.score)) if text is not None
    ]
    if request.mask is None and request.score is None:
        parts.append("no mask, no score")
    if request.sink:
        parts.append("a sink")
    if request.dropout:
        parts.append("dropout")
    if request.params:
        parts.append(f"params {', '.join(param.name for param in request.params)}")
    if request.layout:
        parts.append(f"layout {request.layout}")
    if request.align == "top_left":
        parts.append("align top_left")
    if request.backward:
        parts.append("backward")
    return ", ".join(parts)


def with_extents(param: Param, trees: Sequence[Node]) -> Param:
    """A param that no spec declares, its extents told from how ``trees`` index it."""
    for tree in trees:
        for node in walk(tree):
            if isinstance(node, Read) and node.param == param.name:
                names = [index.id if isinstance(index, Name) else "" for index in node.indices]
                return replace(param, shape=tuple(_EXTENTS.get(name, "n") for name in names))
    return param


def spec_entry(request: Request, taken: set[str], new: Sequence[Param]) -> list[str]:
    """The YAML to add, a line each; ``new`` are the params that the spec lacks."""
    lines = ["params:", *(f"  {_param_line(param)}" for param in new)] if new else []
    keys = [f"name: {_name(request, taken)}", f"head_dim: {request.head_dim}"]
    if request.value_dim != request.head_dim:
        keys.append(f"value_dim: {request.value_dim}")
    keys.append(f"dtype: {request.dtype}")
    keys += [f"{what}: {json.dumps(text)}" for what, text in (("mask", request.mask), ("score", request.score)) if text]
    if request.sink:
        keys.append("sink: true")
    if request.dropout:
        keys.append("dropout: true")
    if request.layout:
        keys.append(f"layout: {request.layout}")
    if request.align == "top_left":
        keys.append("align: top_left")
    if request.backward:
        keys.append("backward: true")
    return [*lines, "variants:", f"  - {{{', '.join(keys)}}}"]


def nearest(candidates: list[tuple[Variant, list[str]]]) -> list[str]:
    """The variants that differ least, a line each."""
    ranked = sorted(candidates, key=lambda candidate: len(candidate[1]))[:_SHOWN]
    return [
        f"near: {variant.name} ({variant.head_dim}, {variant.dtype}"
        f"{f', mask `{variant.mask.text}`' if variant.mask else ''}"
        f"{f', score `{variant.score.text}`' if variant.score else ''}) differs in "
        f"{', '.join(_difference(what, variant) for what in differences)}"
        for variant, differences in ranked
    ]


def _difference(what: str, variant: Variant) -> str:
    """What a variant differs in; with the argument that asks for it, where that is all it takes."""
    if what in ("scale", "align"):
        return f"{what} (pass {what}={getattr(variant, what)!r} to ask for it)"
    return what


def _param_line(param: Param) -> str:
    shape = ", ".join(str(extent) for extent in param.shape)
    return f"{param.name}: {{dtype: {param.dtype}, shape: [{shape}]{', grad: true' if param.grad else ''}}}"


def _name(request: Request, taken: set[str]) -> str:
    words = [text for text in (request.mask, request.score) if text is not None]
    plain = [word for word in words if re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", word)]
    stem = f"{plain[0] if plain else 'attention'}_d{request.head_dim}_{request.dtype}"
    name, count = stem, 2
    while name in taken:
        name, count = f"{stem}_{count}", count + 1
    return name
