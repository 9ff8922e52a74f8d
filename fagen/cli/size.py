"""Problem sizes as people write them on a command line."""

from __future__ import annotations

import re

import typer

from ..costs import ProblemSize

_PART = re.compile(r"(B|Hk|H|Sq|Skv|S)(\d{1,9})")


def parse_size(text: str) -> ProblemSize:
    """``B1,H8,Hk2,S4096``, or ``Sq`` and ``Skv`` apart; Hk is H and the rest as in ProblemSize where left out."""
    values: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] in values:
            raise typer.BadParameter(f"{text!r} is no size; write it as B1,H8,Hk2,S4096", param_hint="--size")
        values[match[1]] = int(match[2])
    default = ProblemSize()
    heads, length = values.get("H", default.heads), values.get("S", default.q_len)
    kv_heads = values.get("Hk", heads)
    if not kv_heads or heads % kv_heads:
        raise typer.BadParameter(f"{text!r}: {heads} heads are no multiple of {kv_heads}", param_hint="--size")
    return ProblemSize(
        values.get("B", default.batch), heads, kv_heads, values.get("Sq", length), values.get("Skv", length)
    )
