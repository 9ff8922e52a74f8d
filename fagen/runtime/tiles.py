"""How a mask falls into tiles, as counted. Types alone: users' type checkers read this file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileCounts:
    """Score tiles over batch and heads, for given lengths and params.

    ``total`` tiles in the whole score matrix; ``full`` run without mask code, ``partial`` with it; ``empty`` of the
    partial ones admit no pair, so they are run in vain. The rest, total - full - partial, are never visited.
    """

    total: int
    full: int
    partial: int
    empty: int
