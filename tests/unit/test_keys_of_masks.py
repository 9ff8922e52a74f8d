"""What a Hopper kernel asks of a key once for both of a lane's rows."""

from __future__ import annotations

import pytest
from expr_grid import variant_of
from expr_random import PARAMS, masks

from fagen.expr import CUDA_SCALAR, emit
from fagen.plan.wgmma.names import OfKey
from fagen.runtime.variant import Param


def _of_key(mask: str, params: dict[str, Param]) -> OfKey:
    piece = emit(variant_of(params, mask=mask), CUDA_SCALAR).mask
    assert piece is not None
    return OfKey.of(piece)


def test_what_is_read_of_a_key_is_no_rows_business() -> None:
    doc = {"doc": Param("doc", "i32", ("B", "n"))}
    found = _of_key("doc[b, q] == doc[b, kv]", doc)
    assert found.lines == ("const int32_t doc_at_b_kv = doc_at.load(b, kv);",)
    assert found.names == ("doc_at_b_kv",) and found.others == ()
    assert found.alone and not found.beside  # a name that nothing uses does not compile


@pytest.mark.parametrize(
    ("mask", "alone", "beside"),
    [
        ("doc[b, q] == doc[b, kv] and kv <= q", True, True),
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
        piece = emit(variant_of(PARAMS, mask=mask), CUDA_SCALAR).mask
        assert piece is not None
        found = OfKey.of(piece)
        assert sorted(found.lines + found.others) == sorted(piece.pair), mask
