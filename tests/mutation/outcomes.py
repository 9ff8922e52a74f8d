"""What can be changed, and how a changed kernel can end."""

from __future__ import annotations

from collections.abc import Iterable

SURVIVED = "survived"
SAME_CODE = "same code"  # it compiles to the very same
# It computes the same, but visits or masks more tiles than it need, as its tile counts say: slower, not wrong.
OTHER_TILES = "other tiles"
NOT_CPP, CRASHED, HUNG = "not C++", "crashed", "hung"
# Any other outcome is the name of the check's case that found it, before a colon where the emulator says more.
KINDS = (SURVIVED, SAME_CODE, OTHER_TILES, NOT_CPP, CRASHED, HUNG)


def over_all(outcomes: Iterable[str]) -> str:
    """How a change ends that was tried in several kernels; no more are tried than until one finds it."""
    last = ""
    survived = False
    for last in outcomes:
        if last not in (SURVIVED, SAME_CODE):
            return last
        survived |= last == SURVIVED
    return SURVIVED if survived else last
