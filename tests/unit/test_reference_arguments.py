"""What the oracle and the baseline take and refuse, and what must not show in their results."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from variants import variant

from fagen.runtime.baseline import baseline
from fagen.runtime.reference import reference
from fagen.runtime.variant import Param


def test_n_is_one_length_within_a_shape() -> None:
    """As the ops have it."""
    v = variant("pair[q, kv]", params={"pair": Param("pair", "bool", ("n", "n"))})
    x = torch.zeros(1, 3, 1, 16)
    reference(v, x, x, x, params={"pair": torch.ones(7, 7, dtype=torch.bool)})
    with pytest.raises(ValueError, match=r"pair: expected shape \[n, n\], found \[7, 6\]"):
        reference(v, x, x, x, params={"pair": torch.ones(7, 6, dtype=torch.bool)})


@pytest.mark.parametrize("h, hk", [(3, 2), (33, 2), (2, 3), (4, 0)])
def test_head_counts_that_do_not_divide(h: int, hk: int) -> None:
    q, k = torch.zeros(1, 2, h, 16), torch.zeros(1, 2, hk, 16)
    with pytest.raises(ValueError, match=rf"H a multiple of Hk, found {h} query heads and {hk} key heads"):
        reference(variant(), q, k, k)


def test_arguments_that_do_not_fit_are_named() -> None:
    x = torch.zeros(2, 3, 4, 16)
    params = {"doc": Param("doc", "i32", ("B", "n")), "t": Param("t", "f32", (4, "Sq")), "on": Param("on", "bool", ())}
    w = variant("doc[b, q] == 1 and on and t[0, i] > 0", params=params)
    good = {"doc": torch.zeros(2, 9).int(), "t": torch.zeros(4, 3), "on": torch.tensor(True)}
    reference(w, x, x, x, params=good)
    cases: list[tuple[dict, type[Exception], str]] = [
        ({"q": x[..., :8]}, ValueError, r"q: expected shape \[B, Sq, H, 16\], found \[2, 3, 4, 8\]"),
        ({"v": x[0]}, ValueError, r"v: expected shape \[B, Skv, Hk, 16\]"),
        ({"k": x[:1]}, ValueError, "do not fit together"),
        ({"v": x[:, :2]}, ValueError, "do not fit together"),
        ({"q": x.int()}, TypeError, "q: expected real numbers, found torch.int32"),
        ({"sink": torch.zeros(4)}, ValueError, "sink: this variant has none"),
        ({"params": {}}, ValueError, r"doc: expected a param of shape \[B, n\], found none"),
        ({"params": {**good, "more": x}}, ValueError, "more: this variant reads no such param"),
        ({"params": {**good, "doc": torch.zeros(3, 9).int()}}, ValueError, r"\[B, n\] with B 2, found \[3, 9\]"),
        (
            {"params": {**good, "t": torch.zeros(5, 3)}},
            ValueError,
            r"t: expected shape \[4, Sq\] with Sq 3, found \[5, 3\]",
        ),
        ({"params": {**good, "doc": torch.zeros(2, 9)}}, TypeError, "doc: expected integers, found torch.float32"),
        ({"params": {**good, "on": torch.tensor(1)}}, TypeError, "on: expected truth values, found torch.int64"),
    ]
    for changes, kind, message in cases:
        arguments = {"q": x, "k": x, "v": x, "params": good, **changes}
        with pytest.raises(kind, match=message):
            reference(w, **arguments)
    with pytest.raises(ValueError, match="sink: missing"):
        reference(variant(sink=True), x, x, x)
    with pytest.raises(ValueError, match=r"sink: expected shape \[4\], found \[3\]"):
        reference(variant(sink=True), x, x, x, sink=torch.zeros(3))


def test_dtypes_of_results() -> None:
    x = torch.randn(1, 3, 2, 16).bfloat16()
    w = variant("causal", dtype="bf16")
    assert [t.dtype for t in reference(w, x, x, x)] == [torch.float64] * 2
    assert [t.dtype for t in reference(w, x, x, x, dtype=torch.float32)] == [torch.float32] * 2
    assert [t.dtype for t in baseline(w, x, x, x)] == [torch.bfloat16, torch.float32]


def test_autocast_changes_nothing() -> None:
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 9, 2, 16) for _ in range(3))
    for formula in (reference, baseline):
        plain = formula(variant("causal"), q, k, v)
        with torch.autocast("cpu", torch.bfloat16):
            cast = formula(variant("causal"), q, k, v)
        assert all(torch.equal(a, b) for a, b in zip(plain, cast, strict=True))


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large inputs are cut into blocks of heads and rows, and computed again for the gradients."""
    params = {"slope": Param("slope", "f32", ("H",), grad=True), "f": Param("f", "f32", ("B", "H", "n"), grad=True)}
    w = variant("causal", "s - slope[h] * abs(q - kv) + f[b, h, kv]", params=params, sink=True)
    torch.manual_seed(5)

    def run() -> list[Tensor]:
        torch.manual_seed(6)
        q, k, v = (torch.randn(2, s, h, 16).double().requires_grad_() for s, h in ((11, 4), (13, 2), (13, 2)))
        slope, f, sink = (torch.randn(s).double().requires_grad_() for s in ((4,), (2, 4, 13), (4,)))
        o, lse = reference(w, q, k, v, params={"slope": slope, "f": f}, sink=sink)
        gradients = torch.autograd.grad((o.sin().sum() + lse.cos().sum()), (q, k, v, slope, f, sink))
        return [o, lse, *gradients]

    whole = run()
    for block, kept in ((500, 10**9), (150, 10**9), (30, 10**9), (1, 10**9), (150, 1), (1, 1)):
        monkeypatch.setattr("fagen.runtime.reference.BLOCK", block)
        monkeypatch.setattr("fagen.runtime.reference.KEPT", kept)
        for one, other in zip(run(), whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_baseline_rounds_where_a_kernel_does() -> None:
    torch.manual_seed(7)
    for dtype, unit, low, high in (
        ("bf16", torch.bfloat16, 2**-10, 2**-7),
        ("f16", torch.float16, 2**-13, 2**-10),
        ("f32", torch.float32, 0, 2**-21),
    ):
        q, k, v = (torch.randn(2, 64, 4, 64).to(unit).requires_grad_() for _ in range(3))
        w = variant("causal", head_dim=64, dtype=dtype)
        results = []
        for formula in (reference, baseline):
            o, lse = formula(w, q, k, v)
            results.append([o, lse, *torch.autograd.grad((o.double() * torch.arange(64)).sum() / 64, (q, k, v))])
        for exact, rounded in zip(*results, strict=True):
            error = (exact.double() - rounded.double()).norm() / exact.double().norm()
            assert error < high
        assert low < (results[0][0] - results[1][0].double()).norm() / results[0][0].norm()
        assert results[1][1].dtype == torch.float32
        assert (results[0][1] - results[1][1]).abs().max() < 1e-5
