"""NaN and Inf reach exactly the rows whose mask admits them, whatever tile they are in."""

from __future__ import annotations

import pytest
import torch
from forward_rule import draw
from kernels import DTYPES, kernel, variant

from fagen.runtime.variant import Param, Tiles

BAD = (torch.nan, torch.inf, -torch.inf)
TILES = Tiles(q=18, kv=64)
DOC = Param("doc", "i32", ("B", "n"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def rows_with_nonfinite(o: torch.Tensor) -> torch.Tensor:
    """[B, S, H]: where any element of a row is not finite."""
    return ~o.isfinite().all(-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", ["causal", "window(40, 5)", "q % 3 != kv % 2"])
def test_included_keys_are_seen_and_excluded_ones_are_not(dtype: str, mask: str) -> None:
    v = variant("contain", 32, dtype, mask=mask, tiles=TILES)
    S = 150
    q, k, w = draw(v, B=1, H=2, Hk=1, Sq=S, Skv=S)
    clean, clean_lse = kernel(v)(q, k, w)
    i, j = torch.arange(S)[:, None], torch.arange(S)
    admits = {"causal": j <= i, "window(40, 5)": (j >= i - 40) & (j <= i + 5), "q % 3 != kv % 2": i % 3 != j % 2}[mask]
    for key, bad in ((0, BAD[0]), (31, BAD[1]), (64, BAD[2]), (100, BAD[0]), (149, BAD[1])):
        for poisoned in ("k", "v"):
            k2, w2 = k.clone(), w.clone()
            (k2 if poisoned == "k" else w2)[0, key, 0, 5] = bad
            o, lse = kernel(v)(q, k2, w2)
            sees = admits[:, key]
            hidden = ~sees[None, :, None].expand(1, S, 2)
            assert torch.equal(o[hidden], clean[hidden]), (key, poisoned)
            assert torch.equal(lse[:, :, ~sees], clean_lse[:, :, ~sees])
            if poisoned == "v":  # the value itself, in its column
                assert not o[0, sees, :, 5].isfinite().any() and o[0, sees, :, :5].isfinite().all()
                assert torch.equal(lse, clean_lse)
            elif bad != bad:
                assert o[0, sees].isnan().all() and lse[0][:, sees].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_key_admitted_with_no_weight_is_seen(dtype: str) -> None:
    """Admitted is what the mask says, not what is left of a weight."""
    v = variant("no_weight", 16, dtype, mask="causal", scale=1.0, tiles=TILES)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=70, Skv=70)
    q[:], k[:] = 0.0, 0.0
    q[..., 0] = 100.0
    k[0, 3, 0, 0] = -100.0
    w[0, 3, 0, 0] = torch.nan
    o, _ = kernel(v)(q, k, w)
    assert o[0, 3:, 0, 0].isnan().all() and o[0, :3].isfinite().all() and o[..., 1:].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_reach_their_own_row(dtype: str) -> None:
    v = variant("contain", 32, dtype, mask="causal", tiles=TILES)
    q, k, w = draw(v, B=2, H=2, Hk=2, Sq=50, Skv=80)
    clean, _ = kernel(v)(q, k, w)
    q[1, 20, 1, 3] = torch.nan
    o, lse = kernel(v)(q, k, w)
    wrong = rows_with_nonfinite(o)
    assert wrong.sum() == 1 and wrong[1, 20, 1] and lse.isnan().sum() == 1
    assert torch.equal(o[~wrong], clean[~wrong])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e4])
def test_what_lies_past_the_end_is_not_read(dtype: str, bad: float) -> None:
    """A cache longer than its sequence, for decoding and for prefill."""
    v = variant("past_end", 64, dtype, mask="causal")
    for Sq, length in ((1, 1), (1, 3), (40, 67)):
        q, k, w = draw(v, B=2, H=1, Hk=1, Sq=Sq, Skv=length + 60)
        k[:, length:], w[:, length:] = 0.0, 0.0
        want = kernel(v)(q, k[:, :length], w[:, :length])
        k[:, length:], w[:, length:] = bad, bad
        got = kernel(v)(q, k[:, :length], w[:, :length])
        assert all(torch.equal(x, y) for x, y in zip(want, got, strict=True))


def test_documents_hide_nan() -> None:
    v = variant("contain_doc", 32, "bf16", mask="document(doc)", params=(DOC,), tiles=TILES)
    q, k, w = draw(v, B=1, H=1, Hk=1, Sq=140, Skv=140)
    doc = torch.arange(140)[None].int() // 50
    clean, _ = kernel(v)(q, k, w, params={"doc": doc})
    k[0, 60], w[0, 70] = torch.nan, torch.inf
    o, _ = kernel(v)(q, k, w, params={"doc": doc})
    assert torch.equal(o[0, :50], clean[0, :50]) and torch.equal(o[0, 100:], clean[0, 100:])
    assert not o[0, 50:100].isfinite().all(-1).any()
