"""Constants as C++ text that reads back as exactly the same value."""

from __future__ import annotations

import math

from ..errors import PlanError
from .graph import round_f32
from .sizes import INT32, INT64


def float_literal(value: float) -> str:
    """A float32: the shortest decimal that reads back as it, with the suffix f."""
    if math.isnan(value):
        return "kNan"
    if math.isinf(value):
        return "kInfinity" if value > 0 else "-kInfinity"
    shortest = next(near for digits in range(1, 10) if round_f32(near := float(f"{value:.{digits}g}")) == value)
    return f"{shortest!r}f"


def int_literal(value: int) -> str:
    """An int32_t where 32 bits hold the number, else an int64_t."""
    if not INT64[0] <= value <= INT64[1]:
        raise PlanError(f"the expression holds the integer {value}, which does not fit 64 bits")
    if INT32[0] < value <= INT32[1]:
        return str(value)
    if value == INT64[0]:
        return f"(int64_t{{{INT64[0] + 1}}} - 1)"
    return f"int64_t{{{value}}}"
