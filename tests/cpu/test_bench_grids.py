"""The grids of `fagen bench`: specs/h100.yaml has them, params are as in use, and FlexAttention computes the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, make_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from variants import variant

from fagen.bench import peers
from fagen.bench.closure import closure
from fagen.bench.grids import GRIDS, Entry, Function, entries
from fagen.bench.inputs import DOCUMENTS, fill_params
from fagen.bench.measure import How
from fagen.bench.run import Options, _of_grids
from fagen.bench.texts import TEXTS
from fagen.costs import ProblemSize
from fagen.resources import specs_dir
from fagen.runtime.fakes import DTYPES
from fagen.runtime.reference import reference, trees
from fagen.runtime.variant import Param, Variant
from fagen.spec import expand, load

HOPPER = expand(load(specs_dir() / "h100.yaml"))
TRAINED = expand(load(specs_dir() / "h100_training.yaml"))
CUSTOM = entries(["custom"])


def _of(function: Function) -> Variant:
    [found] = [each for each in HOPPER if function.matches(each)]
    return found


@pytest.mark.parametrize("name", GRIDS)
def test_one_module_has_all_of_them(name: str) -> None:
    """Each function once, so that `attention` finds it."""
    for entry in entries([name]):
        assert _of(entry.function).scale is None
        assert entry.size.heads % entry.size.kv_heads == 0


@pytest.mark.parametrize("name", ["standard", "custom"])
def test_one_module_has_gradients_of_those_that_train(name: str) -> None:
    for entry in entries([name]):
        [found] = [each for each in TRAINED if entry.function.matches(each) and not each.deterministic]
        assert found.backward


def test_the_standard_grid() -> None:
    found = entries(["standard"])
    assert len(found) == 36
    for entry in found:
        size = entry.size
        assert size.batch * size.q_len == 16384 and size.heads * entry.function.head_dim == 2048
        assert size.heads == size.kv_heads and size.q_len == size.kv_len
    assert Counter(entry.size.q_len for entry in found) == dict.fromkeys((512, 1024, 2048, 4096, 8192, 16384), 6)
    assert [entry.size for entry in entries(["sustained"])] == [entry.size for entry in entries(["standard"], (8192,))]


def test_what_is_beside_an_aligned_shape_has_it_in_its_grid() -> None:
    found = entries(["second"])
    beside = [entry for entry in found if entry.aligned]
    assert all(any(entry.aligned and other.key == entry.aligned.key for other in found) for entry in beside)
    dims = {
        (entry.function.head_dim, entry.function.value_dim): entry.aligned.function.head_dim
        for entry in beside
        if entry.aligned and entry.function.head_dim != entry.aligned.function.head_dim
    }
    assert dims == {
        (72, None): 64,
        (80, None): 64,
        (96, None): 128,
        (112, None): 128,
        (192, None): 256,
        (192, 128): 128,
    }
    sizes = {(entry.size.q_len, entry.size.kv_len) for entry in beside}
    assert sizes == {(8192, 8192), (2048, 32768), (1000, 1000), (4097, 4097)}
    assert {(entry.size.heads, entry.size.kv_heads) for entry in beside} >= {(32, 8), (64, 8)}


def test_a_cell_of_two_grids_is_measured_once() -> None:
    """With everything that either asks for."""
    both = entries(["standard", "custom", "second"])
    assert len({entry.key for entry in both}) == len(both)
    full = Entry(Function(128), ProblemSize(2, 16, 16, 8192, 8192))
    [found] = [entry for entry in both if entry.key == full.key]
    assert found.flex
    assert entries(["custom", "custom"]) == entries(["custom"])


def test_what_is_measured_otherwise_is_another_cell() -> None:
    assert len(entries(["standard", "sustained", "short", "host"])) == 36 + 6 + 19 + 2
    assert {str(entry.how) for entry in entries(["sustained", "short", "host"])} == {"sustained", "graph", "host"}
    assert str(How(sustained=0.25, graph=True)) == "sustained graph" and str(How()) == ""


def test_functions_are_compared_by_meaning() -> None:
    doc = {"doc": Param("doc", "i32", ("B", "n"))}
    packed = variant("causal and document(doc)", params=doc, dtype="bf16")
    assert Function(16, "kv <= q and doc[b, q] == doc[b, kv]").matches(packed)
    assert not Function(16, "causal and document(other)").matches(packed)
    assert not Function(16, "causal").matches(packed) and not Function(16, "causal").matches(variant("causal"))
    assert Function(16, "causal", dtype="f32").matches(variant("kv <= q"))
    others = [variant("causal", **{key: value}) for key, value in (("scale", 0.5), ("sink", True), ("value_dim", 8))]
    for other in (*others, variant("causal", dropout=True)):
        assert not Function(16, "causal", dtype="f32").matches(other)
    assert Function.of(packed).matches(packed)
    # A published module has classes of its own for what it declares.
    other_param = make_dataclass("Param", [(field.name, Any) for field in fields(Param)], frozen=True)
    theirs = replace(packed, params=tuple(other_param(**vars(param)) for param in packed.params))
    assert Function(16, "causal and document(doc)").matches(theirs)


# ---- params ----


def _filled(name: str, size: ProblemSize) -> torch.Tensor:
    [of] = [each for each in HOPPER if each.name == name]
    [tensor] = fill_params(of, size, seed=0).values()
    return tensor


@pytest.mark.parametrize("length", [1000, 8192])
def test_documents_begin_within_tiles(length: int) -> None:
    doc = _filled("documents_d128", ProblemSize(3, 16, 16, length, length))
    assert doc.shape == (3, length) and doc.dtype == torch.int32
    for row in doc:
        begins = (row.diff().nonzero().flatten() + 1).tolist()
        assert row.unique().tolist() == list(range(DOCUMENTS)) and len(begins) == DOCUMENTS - 1
        assert all(begin % 64 for begin in begins)
        lengths = [b - a for a, b in zip([0, *begins], [*begins, length], strict=True)]
        assert min(lengths) > 0.7 * length / DOCUMENTS and max(lengths) < 1.3 * length / DOCUMENTS
    assert not torch.equal(doc[0], doc[1])


def test_slopes_and_tables() -> None:
    slope = _filled("alibi_d128", ProblemSize(2, 16, 16, 512, 512))
    torch.testing.assert_close(slope, torch.tensor([2 ** (-h / 2) for h in range(1, 17)]))
    table = _filled("relative_d128", ProblemSize(2, 16, 16, 512, 512))
    assert table.shape == (16, 1024) and table.std() > 0.9


# ---- FlexAttention ----


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("entry", CUSTOM, ids=lambda entry: _of(entry.function).name)
def test_flex_has_the_custom_grid(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, at lengths that make every part of a mask matter."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    of = _of(entry.function)
    if "1024" in of.name:
        of = variant("causal and q - kv < 64", dtype="bf16", head_dim=16)
    of = replace(of, dtype="f32")
    size = replace(entry.size, heads=2, kv_heads=1 if entry.size.kv_heads == 8 else 2, q_len=256, kv_len=256)
    params = fill_params(of, size, seed=0)
    peer = peers.flex(of, size, params)
    assert peer is not None
    q = torch.randn(size.batch, size.heads, size.q_len, of.head_dim)
    k, v = torch.randn(2, size.batch, size.kv_heads, size.kv_len, of.head_dim).unbind()
    q = q * 8  # scores that a soft cap changes
    expected, _ = reference(of, *(x.double().transpose(1, 2) for x in (q, k, v)), params=params)
    torch.testing.assert_close(peer.call(q, k, v).double(), expected.transpose(1, 2), rtol=1e-4, atol=1e-5)
    other = peers.unfused(of, size, params)
    assert other is not None
    torch.testing.assert_close(other.call(q, k, v).double(), expected.transpose(1, 2), rtol=1e-4, atol=1e-5)


def test_flex_gets_what_one_would_write_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of indices that cannot be outside, and integers as wide as its own."""
    of = _of(CUSTOM[-1].function)
    size = CUSTOM[-1].size
    names = {name: torch.tensor(5, dtype=torch.int32) for name in ("b", "h", "q", "kv")}
    names |= {"s": torch.tensor(1.0), "q_len": size.q_len, "kv_len": size.kv_len}  # type: ignore[dict-item]
    params = fill_params(of, size, seed=0)
    _, score = trees(of)
    assert score is not None
    seen: list[torch.dtype] = []
    entry = torch.Tensor.__getitem__

    def read(tensor: torch.Tensor, indices: tuple[torch.Tensor, ...]) -> torch.Tensor:
        seen.extend(index.dtype for index in indices)
        return entry(tensor, indices)

    monkeypatch.setattr(torch.Tensor, "__getitem__", read)
    monkeypatch.setattr(torch, "where", None)
    bounds = {"h": (0, size.heads - 1), "q": (0, size.q_len - 1), "kv": (0, size.kv_len - 1)}
    bounds |= {"kv_len": (size.kv_len, size.kv_len)}
    value = closure(score, params, bounds=bounds)(names)
    assert float(value) == pytest.approx(1.0 + float(params["bias"].tolist()[5][size.kv_len]))
    assert seen == [torch.int32, torch.int32]
    with pytest.raises(TypeError):  # of one more key, the first of them would be outside
        closure(score, params, bounds=bounds | {"kv_len": (0, size.kv_len)})(names)


def test_the_unfused_formula_keeps_its_dtype() -> None:
    of = replace(variant("causal"), dtype="bf16")
    size = ProblemSize(1, 4, 2, 16, 24)
    peer = peers.unfused(of, size, {})
    assert peer is not None and peers.unfused(variant(sink=True), size, {}) is None
    q, k, v = (torch.randn(1, heads, length, 16).to(DTYPES["bf16"]) for heads, length in ((4, 16), (2, 24), (2, 24)))
    assert peer.call(q, k, v).dtype == torch.bfloat16


def test_the_options_text_has_every_grid() -> None:
    assert f"has: {', '.join(GRIDS)};" in TEXTS["grid"]


def test_of_twins_attention_is_measured_beside_the_deterministic_one() -> None:
    """`attention` calls the one that is not deterministic, unless torch is asked for such."""
    module: Any = SimpleNamespace(variants=lambda: TRAINED)
    items = list(_of_grids(module, TRAINED, Options(grids=("standard",)), print))
    assert items and all(item.attention and not item.variant.deterministic for item in items)
    assert all(item.twin is not None and item.twin.name == f"{item.variant.name}_deterministic" for item in items)
