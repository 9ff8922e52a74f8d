"""Problem sizes as people write them on a command line."""

from __future__ import annotations

import re

from .costs import ProblemSize
from .errors import Problem, UsageError

# The grid that attention kernels for cards are compared over: as many tokens and as wide a model at every length.
TOKENS, WIDTH = 16384, 2048
LENGTHS = (512, 2048, 8192, 16384)

_PART = re.compile(r"(B|Hk|H|Sq|Skv|S)(\d{1,9})")


def parse_size(text: str) -> ProblemSize:
    """``B1,H8,Hk2,S4096``, or ``Sq`` and ``Skv`` apart; Hk is H and the rest as in ProblemSize where left out.

    Raises UsageError for what is no size.
    """
    values: dict[str, int] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or match[1] in values:
            raise UsageError(Problem(f"--size: {text!r} is no size", hint="write it as B1,H8,Hk2,S4096"))
        values[match[1]] = int(match[2])
    default = ProblemSize()
    heads, length = values.get("H", default.heads), values.get("S", default.q_len)
    kv_heads = values.get("Hk", heads)
    if not kv_heads or heads % kv_heads:
        raise UsageError(Problem(f"--size: {text!r}: {heads} heads are no multiple of {kv_heads}"))
    return ProblemSize(
        values.get("B", default.batch), heads, kv_heads, values.get("Sq", length), values.get("Skv", length)
    )


def size_text(size: ProblemSize) -> str:
    """The size as :func:`parse_size` reads it."""
    heads = f"H{size.heads}" + (f",Hk{size.kv_heads}" if size.kv_heads != size.heads else "")
    lengths = f"S{size.q_len}" if size.q_len == size.kv_len else f"Sq{size.q_len},Skv{size.kv_len}"
    return f"B{size.batch},{heads},{lengths}"


def grid_size(length: int, head_dim: int, tokens: int = TOKENS) -> ProblemSize:
    """``tokens`` in sequences of ``length``, and as many heads of ``head_dim`` as make the width of WIDTH, or nearly.

    Raises UsageError where the sequences do not come out even.
    """
    if length < 1 or tokens < 1 or tokens % length:
        raise UsageError(Problem(f"--length: {tokens} tokens are no whole number of sequences of {length}"))
    heads = max(1, WIDTH // head_dim)
    return ProblemSize(tokens // length, heads, heads, length, length)
