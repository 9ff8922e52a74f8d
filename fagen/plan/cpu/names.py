"""The names that the cpu templates see. A template prints these and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping

from ...target import ISAS
from ..comments import comment, text_of
from ..model import Plan
from .backward import Backward, backward_names
from .elements import choose_elements
from .forward import Forward, forward_names


def shared_names(plan: Plan) -> Mapping[str, object]:
    """What the templates of both directions may print."""
    variant = plan.variant
    assert plan.isa is not None
    elements = choose_elements(variant, ISAS[plan.isa])
    bottom_right = variant.align == "bottom_right"
    return {
        "name": variant.name,
        "spec": comment(plan.spec),
        "mask_text": text_of(variant.mask, "none"),
        "score_text": text_of(variant.score, "s"),
        "headers": _headers(plan),
        "element": elements.element,
        "product": elements.product,
        "product_note": elements.note,
        "head_dim": variant.head_dim,
        "value_dim": variant.value_dim,
        "masked": variant.mask is not None,
        "sink": variant.sink,
        "dropout": variant.dropout,
        "qualifier": "",
        # The position of query row i, as an expression of i, and what turns a Span of rows into one of positions.
        "position_of_i": "i + kv_len - q_len" if bottom_right else "i",
        "span": "Span",
        "position_shift": "{kv_len - q_len}" if bottom_right else "",
    }


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction may print besides."""
    if direction == "forward":
        assert isinstance(plan.forward, Forward)
        return {"params": "ForwardParams", **forward_names(plan.variant, plan.code, plan.forward)}
    assert isinstance(plan.backward, Backward)
    return {"params": "BackwardParams", **backward_names(plan.variant, plan.code, plan.backward)}


def _headers(plan: Plan) -> tuple[str, ...]:
    """What the expressions need; the skeletons name the rest."""
    return ("array.h", "cpu/math.h") if plan.code.declarations else ("cpu/math.h",)
