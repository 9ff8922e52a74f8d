"""What a Hopper kernel asks of a key once for both of a lane's rows."""

from __future__ import annotations

import pytest
from expr_grid import variant_of
from expr_random import PARAMS, masks

from fagen.expr import CUDA_SCALAR, emit
from fagen.plan.wgmma.excluding import OfKey
from fagen.runtime.variant import Param


def _of_key(mask: str, params: dict[str, Param]) -> OfKey:
    code = emit(variant_of(params, mask=mask), CUDA_SCALAR)
    assert code.mask is not None
    return OfKey.of(code.mask, code.declarations)


def test_what_is_read_of_a_key_is_no_rows_business() -> None:
    doc = {"doc": Param("doc", "i32", ("B", "n"))}
    found = _of_key("doc[b, q] == doc[b, kv]", doc)
    assert found.lines == ("const auto doc_at_b_kv = keys.doc_at_b_kv.at<kHeld>(column);",)
    (read,) = found.reads
    assert (read.array.name, read.axis, read.indexes) == ("doc_at", 1, "b, at.j")
    assert found.names == ("doc_at_b_kv",) and found.others == () and not found.loads
    assert not found.alone and not found.beside  # a name that nothing uses does not compile


@pytest.mark.parametrize(
    ("mask", "indexes"),
    [
        ("at[b, kv - 3] > q", ["b, at.j - 3"]),
        ("at[hk, j + 1] > at[b, q]", ["hk, at.j + 1"]),
        ("at[b, kv] < at[kv, h]", ["b, at.j", "at.j, h"]),
        # Not along one axis from key to key, or at what is read itself: all are read one by one.
        ("at[b, kv] < at[b, 2 * kv]", []),
        ("at[b, kv] < at[kv, kv]", []),
        ("at[b, at[b, kv]] < q", []),
        ("at[b, q - kv] < q", []),
    ],
)
def test_what_is_read_along_a_line(mask: str, indexes: list[str]) -> None:
    found = _of_key(mask, {"at": Param("at", "i32", ("n", "n"))})
    assert [read.indexes for read in found.reads] == indexes
    assert found.loads == (not indexes)


@pytest.mark.parametrize(
    ("mask", "alone", "beside"),
    [
        ("doc[b, q] == doc[b, kv] and kv <= q", False, True),
        ("doc[b, q] == doc[b, kv // 2] and kv <= q", True, True),
        ("kv <= q", False, True),
        ("doc[b, q] == doc[b, j]", False, False),
    ],
)
def test_who_names_the_position_of_a_key(mask: str, alone: bool, beside: bool) -> None:
    found = _of_key(mask, {"doc": Param("doc", "i32", ("B", "n"))} if "doc" in mask else {})
    assert (found.alone, found.beside) == (alone, beside)


def test_what_depends_on_both_is_of_the_pair() -> None:
    at = {"at": Param("at", "i32", ("n",))}
    found = _of_key("at[q - kv] > at[kv] and at[at[q - kv]] != at[at[kv]]", at)
    assert all("q" not in line.replace("equal", "") for line in found.lines) and len(found.lines) == 2
    assert len(found.others) == 2


@pytest.mark.parametrize("seed", range(3))
def test_every_statement_is_one_or_the_other(seed: int) -> None:
    for mask in masks(40, seed):
        code = emit(variant_of(PARAMS, mask=mask), CUDA_SCALAR)
        assert code.mask is not None
        found = OfKey.of(code.mask, code.declarations)
        reads = {read.statement: f"= {read.array.name}.load(" for read in found.reads}
        assert len(found.lines + found.others) == len(code.mask.pair), mask
        for line in found.lines + found.others:
            assert line in code.mask.pair or any(reads[line] in other for other in code.mask.pair), mask
