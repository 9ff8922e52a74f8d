"""A variant's ops as torch sees them, and what is registered beside their kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import fakes, formula
from .variant import Variant


@dataclass(frozen=True)
class Ops:
    """The overloads of one variant. ``backward`` is None where the spec asks for none."""

    forward: Any
    forward_out: Any
    tile_counts: Any
    backward: Any | None


def find(namespace: str, variant: Variant) -> Ops:
    """The ops of ``variant``, once its library is loaded."""
    space = getattr(torch.ops, namespace)
    name = variant.name
    return Ops(
        forward=getattr(space, f"{name}_forward").default,
        forward_out=getattr(space, f"{name}_forward_out").default,
        tile_counts=getattr(space, f"{name}_tile_counts").default,
        backward=getattr(space, f"{name}_backward").default if variant.backward else None,
    )


def register(library: torch.library.Library, variant: Variant) -> None:
    """Give the ops of ``variant`` in ``library``'s namespace their fakes and their autograd formulas."""
    ops = find(library.ns, variant)
    for op, fake in (
        (ops.forward, fakes.forward),
        (ops.forward_out, fakes.forward_out),
        (ops.tile_counts, fakes.tile_counts),
        (ops.backward, fakes.backward),
    ):
        if op is not None:
            torch.library.register_fake(op, fake(variant), lib=library)
    if ops.backward is not None:
        formula.register(library, variant, ops.forward, ops.backward)
