"""What the planner chooses for the backward kernels of the mma schedule: what fits, for any head dim of any card."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from fagen.plan import Plan, context, plan
from fagen.plan.mma.backward import Backward
from fagen.runtime.variant import Expression, Param, Variant
from fagen.target import TARGETS

CARDS = [target.name for target in TARGETS.values() if target.schedule == "mma"]
CAUSAL = Expression("causal", "kv <= q")
SLOPE = Param("slope", "f32", ("H",), grad=True)
BIAS = Param("bias", "f32", ("B", "H", "Sq", "Skv"), grad=True)
TABLE = Param("table", "f32", ("H", "n"), grad=True)


def planned(target: str = "sm_80", **fields: Any) -> Plan:
    given = {"name": "v", "head_dim": 64, "value_dim": 64, "dtype": "f16", **fields}
    return plan(Variant(**given), target)


def chosen(made: Plan) -> Backward:
    assert isinstance(made.backward, Backward)
    return made.backward


@pytest.mark.parametrize("target", CARDS)
def test_tiles_fit_for_any_head_dim(target: str) -> None:
    device = TARGETS[target].device
    assert device is not None
    for head_dim, value_dim in product((8, 40, 64, 72, 96, 128, 136, 192, 248, 256), (8, 72, 128, 256)):
        for mask in (None, CAUSAL):
            backward = chosen(planned(target, head_dim=head_dim, value_dim=value_dim, mask=mask))
            assert max(backward.shared_bytes, backward.prepare_bytes) <= device.shared_per_block
            assert backward.tile_kv % (16 * backward.row_warps) == 0
            assert backward.tile_q % (16 * backward.column_warps) == 0
            assert backward.threads == 32 * backward.row_warps * backward.column_warps >= backward.tile_q
            assert head_dim <= backward.head_width < head_dim + 32 and backward.head_width % 32 == 0
            # Sums of dK and dV and a tile's weights and slopes leave a quarter of a thread's registers, and more beside
            # columns that are not there.
            sums = backward.tile_kv * (backward.head_width + backward.value_width)
            pairs = 2 * backward.tile_kv * backward.tile_q
            assert (sums + pairs) // backward.threads <= (160 if head_dim % 32 or value_dim % 32 else 192)


def test_kernels_are_those_that_a_variant_needs() -> None:
    assert list(chosen(planned()).kernels) == ["prepare", "kernel", "finish"]
    assert list(chosen(planned(sink=True)).kernels) == ["prepare", "kernel", "finish", "sink"]
    sloped: dict[str, Any] = {"score": Expression("s - slope[h]", "s - slope[h]"), "params": (SLOPE,)}
    assert list(chosen(planned(**sloped)).kernels) == ["prepare", "kernel", "finish"]
    assert list(chosen(planned(**sloped, deterministic=True)).kernels) == ["prepare", "kernel", "finish", "round"]


def test_sums_that_several_threads_add_to_are_exact_if_they_must_not_depend_on_an_order() -> None:
    text = "s + bias[b, h, i, j] + table[h, q - kv + 9]"
    fields: dict[str, Any] = {"score": Expression(text, text), "params": (BIAS, TABLE)}
    assert chosen(planned(**fields)).sums == {"bias": "atomic", "table": "atomic"}
    made = planned(**fields, deterministic=True)
    assert chosen(made).sums == {"bias": "atomic", "table": "exact"} and chosen(made).turns
    assert context(made, "backward")["rounded"] == (1,)
    assert "one thread" in made.why["backward.sums.bias"] and "no order" in made.why["backward.sums.table"]
    # Read twice, an element may have two threads.
    text = "s + bias[b, h, i, j] * bias[b, h, j, i]"
    twice = planned(score=Expression(text, text), params=(BIAS,), deterministic=True)
    assert chosen(twice).sums == {"bias": "exact"}


def test_sums_run_over_all_pairs_that_read_one_element() -> None:
    row = Param("row", "f32", ("B", "H", "Sq"), grad=True)
    text = "s - slope[h] * abs(q - kv) + row[b, h, i] + table[h, j]"
    made = planned(score=Expression(text, text), params=(SLOPE, row, TABLE))
    kinds = {grad.scatter[-1].partition("_at_grad")[0]: grad.kind for grad in context(made, "backward")["slopes"].grads}
    assert kinds == {"slope": "tile", "row": "row", "table": "pair"}
