"""What attention costs: operations, bytes moved and memory, as formulas and as numbers.

The formulas are sympy expressions over the extents, so that `fagen explain` can print them and put numbers in.
sympy is imported on use: most commands never need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .expr import work_of_pair
from .plan import Plan, schedule
from .runtime.variant import Variant
from .target import TARGETS

ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}


@dataclass(frozen=True)
class ProblemSize:
    """One problem size; ``kv_heads`` divides ``heads``."""

    batch: int = 1
    heads: int = 8
    kv_heads: int = 8
    q_len: int = 1024
    kv_len: int = 1024


def operations(variant: Variant, pairs: Any, direction: str) -> Any:
    """Multiplies and adds of the products over ``pairs`` admitted (query, key) pairs: a number, or a formula of one.

    Forward multiplies Q·Kᵀ and P·V; backward Q·Kᵀ again, dO·Vᵀ, Pᵀ·dO, dSᵀ·Q and dS·K.
    """
    d, dv = variant.head_dim, variant.value_dim
    return 2 * pairs * (d + dv if direction == "forward" else 3 * d + 2 * dv)


@dataclass(frozen=True)
class Bound:
    """What a unit of the card has to do for a pair, of what it does a clock in each of its multiprocessors, and the
    least ``seconds`` that it takes for all pairs."""

    unit: str
    per_pair: float
    per_clock: int
    seconds: float


def bounds(plan: Plan, pairs: float, direction: str) -> tuple[Bound, ...]:
    """The units that a kernel can be bound by, that which takes longest first; none where a target's rates are not
    known or a kernel computes scores otherwise."""
    device = TARGETS[plan.target].device
    if direction != "forward" or plan.schedule != "wgmma" or device is None or device.rates is None:
        return ()
    rates, work = device.rates, work_of_pair(plan.variant)
    units = (
        ("matrix products", operations(plan.variant, 1, direction), rates.products),
        ("special functions", work.special, rates.special),
        ("instructions", work.instructions, rates.instructions),
    )
    a_second = rates.multiprocessors * rates.clock
    found = [Bound(unit, float(each), rate, pairs * each / (rate * a_second)) for unit, each, rate in units]
    return tuple(sorted(found, key=lambda bound: -bound.per_pair / bound.per_clock))


@dataclass(frozen=True)
class Costs:
    """Formulas of one direction. ``moved`` is bytes read and written once each, ``extra`` bytes held beyond inputs
    and outputs (of the kernel's, those that grow with a length: each thread has a fixed part besides); the
    ``unfused`` ones are those of the same formula written with whole score matrices."""

    operations: Any
    moved: Any
    moved_unfused: Any
    extra: Any
    extra_unfused: Any


def costs(plan: Plan, direction: str) -> Costs:
    """Formulas in B, H, Hk, Sq, Skv and ``pairs`` (admitted pairs over all batches and heads).

    Unfused, as plain PyTorch does it: the scores are written in float32 and read by the softmax, which writes the
    probabilities in the variant's dtype for the second product to read. Backward writes and reads dP and dS as well,
    and holds P from the forward pass.
    """
    import sympy

    variant = plan.variant
    batch, heads, kv_heads, rows, keys, pairs = sympy.symbols("B H Hk Sq Skv pairs", positive=True, integer=True)
    element = ELEMENT_BYTES[variant.dtype]
    d, dv = variant.head_dim, variant.value_dim
    queries = batch * rows * heads * d * element
    outputs = batch * rows * heads * dv * element
    key_bytes = batch * keys * kv_heads * d * element
    value_bytes = batch * keys * kv_heads * dv * element
    lse = 4 * batch * heads * rows
    matrix = batch * heads * rows * keys
    if direction == "forward":
        moved = queries + key_bytes + value_bytes + outputs + lse
        extra = batch * kv_heads * keys * schedule(plan.schedule).key_bytes(plan)
        if (stored := schedule(plan.schedule).stored_tiles(plan)) is not None:
            blocks = batch * (heads if stored.by_head else 1) * sympy.ceiling(rows / sympy.Integer(stored.rows))
            words = blocks * sympy.ceiling(keys / sympy.Integer(32 * stored.keys))
            extra += stored.word_bytes * words
        scores_moved, scores_held = 2 * 4 * matrix + 2 * element * matrix, 4 * matrix + element * matrix
    else:
        moved = 2 * (queries + key_bytes + value_bytes) + 2 * outputs + lse
        extra = batch * heads * rows * schedule(plan.schedule).row_bytes(plan)
        # P read twice, dP written and read in float32, dS written once and read by two products.
        scores_moved = 2 * element * matrix + 2 * 4 * matrix + 3 * element * matrix
        scores_held = 2 * element * matrix + 4 * matrix
    return Costs(
        operations=operations(variant, pairs, direction),
        moved=sympy.factor_terms(moved),
        moved_unfused=sympy.factor_terms(moved + scores_moved),
        extra=extra,
        extra_unfused=sympy.factor_terms(scores_held),
    )
