"""The variant of a module that computes what another does, with gradients that are summed in a fixed order."""

from __future__ import annotations

from collections.abc import Iterable

from ..runtime.language import canonical
from ..runtime.reference import trees
from ..runtime.variant import Variant


def deterministic_twin(variant: Variant, variants: Iterable[Variant]) -> Variant | None:
    """That of ``variants``; None where there is none, or ``variant`` has no gradients or is deterministic itself."""
    if variant.deterministic or not variant.backward:
        return None
    wanted = _meaning(variant)
    others = (each for each in variants if each.deterministic and each.backward)
    return next((each for each in others if _meaning(each) == wanted), None)


def _meaning(variant: Variant) -> tuple[object, ...]:
    """All that decides what is computed, from which tensors."""
    keys = ("head_dim", "value_dim", "dtype", "layout", "scale", "align", "sink", "nonfinite", "dropout", "params")
    parts = (None if tree is None else canonical(tree) for tree in trees(variant))
    return (*(getattr(variant, key) for key in keys), *parts)
