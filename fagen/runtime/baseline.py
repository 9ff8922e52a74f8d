"""The baseline: what rounding alone costs, against which a kernel's error is judged."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .arguments import arguments
from .dropout import checked as checked_dropout
from .fakes import DTYPES
from .reference import attend
from .variant import Variant


def baseline(
    variant: Variant,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    sink: Tensor | None = None,
    params: Mapping[str, Tensor] | None = None,
    dropout_p: float = 0.0,
    rng_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse) as :func:`reference` takes and gives them, computed in the variant's dtype as a good kernel would.

    Scores and softmax are float32; probabilities, and in the gradients those of the scores, are rounded to the
    variant's dtype; products are of numbers in that dtype, accumulated in float32; o is rounded to it, lse is float32.
    A gradient has its tensor's dtype: pass q, k and v in the variant's to have theirs rounded as a kernel's are.
    """
    unit = DTYPES[variant.dtype]
    dropout = checked_dropout(variant.name, variant.dropout, dropout_p, rng_state)
    checked = arguments(variant, q, k, v, scale, sink, params or {}, torch.float32, unit, dropout)
    o, lse = attend(variant, checked, torch.float32, unit)
    return o.to(unit), lse
