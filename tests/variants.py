"""Variants for tests, straight from expressions, with no spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fagen.runtime.language import parse, reads, unparse
from fagen.runtime.variant import Expression, Param, Variant


def variant(
    mask: str | None = None,
    score: str | None = None,
    *,
    params: Mapping[str, Param] | None = None,
    consts: Mapping[str, float] | None = None,
    head_dim: int = 16,
    **fields: Any,
) -> Variant:
    """float32, values as wide as keys, unless ``fields`` say otherwise; it has those of ``params`` that it reads."""
    params = params or {}
    read: dict[str, None] = {}
    resolved: dict[str, Expression] = {}
    for key, text in (("mask", mask), ("score", score)):
        if text is not None:
            tree = parse(text, params=params, consts=consts, expect=key)
            resolved[key] = Expression(text, unparse(tree))
            read |= dict.fromkeys(reads(tree))
    fields = {"name": "v", "dtype": "f32", "value_dim": head_dim, **fields}
    used = tuple(param for name, param in params.items() if name in read)
    return Variant(head_dim=head_dim, params=used, **resolved, **fields)
