"""Whether a mask by itself shuts out keys past the last one."""

from __future__ import annotations

import pytest
from expr_grid import variant_of

from fagen.expr import emit
from fagen.expr.code import CUDA_SCALAR
from fagen.runtime.variant import Param

PARAMS = {"doc": Param("doc", "i32", ("B", "n")), "reach": Param("reach", "i32", ())}


@pytest.mark.parametrize(
    ("mask", "ends"),
    [
        ("causal", True),
        ("kv < q", True),
        ("q - kv >= 3", True),
        ("causal and q - kv < 100", True),
        ("causal and document(doc)", True),
        ("document(doc)", False),
        ("kv // 4 < 100 and not kv > q", True),
        ("kv <= q - 5 or kv == q", True),
        ("max(kv, 3) <= q", True),
        ("kv - abs(q) <= q", False),
        ("kv <= q + 1", False),
        ("kv <= q or kv < 10", False),
        ("kv <= q + reach", False),
        ("2 * kv <= q", False),  # so it is, where q is not negative
        ("j <= i", False),  # rows may be more than keys
        ("abs(q - kv) < 10", False),
        ("doc[b, kv] == 3", False),
    ],
)
def test_a_mask_that_ends(mask: str, ends: bool) -> None:
    assert emit(variant_of(PARAMS, mask=mask), CUDA_SCALAR).mask_ends is ends
    assert not emit(variant_of(PARAMS, mask=mask, align="top_left"), CUDA_SCALAR).mask_ends


def test_without_a_mask_nothing_ends_keys() -> None:
    assert not emit(variant_of(PARAMS), CUDA_SCALAR).mask_ends
