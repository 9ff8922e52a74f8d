"""The names that templates see. A template prints these and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runtime.variant import Expression
from ..target import ISAS
from .backward import backward_names
from .elements import choose_elements
from .forward import forward_names
from .model import Plan


def shared_names(plan: Plan) -> Mapping[str, object]:
    """What the templates of both directions may print."""
    variant = plan.variant
    assert plan.isa is not None
    elements = choose_elements(variant, ISAS[plan.isa])
    bottom_right = variant.align == "bottom_right"
    return {
        "name": variant.name,
        "spec": comment(plan.spec),
        "mask_text": _text(variant.mask, "none"),
        "score_text": _text(variant.score, "s"),
        "headers": _headers(plan),
        "element": elements.element,
        "product": elements.product,
        "product_note": elements.note,
        "head_dim": variant.head_dim,
        "value_dim": variant.value_dim,
        "masked": variant.mask is not None,
        "sink": variant.sink,
        # The position of query row i, as an expression of i, and what turns a Span of rows into one of positions.
        "position_of_i": "i + kv_len - q_len" if bottom_right else "i",
        "position_shift": " + Span{kv_len - q_len}" if bottom_right else "",
    }


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction may print besides."""
    if direction == "forward":
        return {"params": "ForwardParams", **forward_names(plan.variant, plan.code, plan.forward)}
    assert plan.backward is not None
    return {"params": "BackwardParams", **backward_names(plan.variant, plan.code, plan.backward)}


def context(plan: Plan, direction: str) -> dict[str, Any]:
    """All names of one direction's templates."""
    return {**shared_names(plan), **direction_names(plan, direction)}


def comment(text: str) -> str:
    """User text that is safe in a C++ comment: one line, plain characters, nothing that could continue or end it."""
    line = " ".join(text.split())
    plain = "".join(each if each.isascii() and each.isprintable() and each != "\\" else "?" for each in line)
    return plain.replace("*/", "* /")


def _text(expression: Expression | None, default: str) -> str:
    return default if expression is None else comment(expression.text)


def _headers(plan: Plan) -> tuple[str, ...]:
    """What the expressions need; the skeletons name the rest."""
    return ("array.h", "cpu/math.h") if plan.code.declarations else ("cpu/math.h",)
