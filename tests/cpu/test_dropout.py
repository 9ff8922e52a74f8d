"""Dropout of built kernels: the mask is the definition's, forward and backward, and replays where it should."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import naive
import pytest
import torch
from calls import call, draw, judge
from torch import Tensor
from torch.library import opcheck
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from variants import variant

from fagen.bench import machines, measure, peers
from fagen.bench.calls import attention_call, variant_call
from fagen.bench.inputs import DROPOUT_P
from fagen.bench.inputs import draw as draw_inputs
from fagen.bench.run import Options, bench
from fagen.build import build
from fagen.costs import ProblemSize
from fagen.resources import templates_dir
from fagen.runtime.dropout import dropout_mask, philox
from fagen.runtime.library import cpu_features
from fagen.target import ISAS

SPEC = """
fagen: 1
name: dropping
target: cpu
isa: {isa}
defaults: {{dropout: true, head_dim: 64}}
params:
  slope: {{dtype: f32, shape: [H], grad: true}}
variants:
  - {{name: full, dtype: f32}}
  - {{name: plain, dtype: f32, dropout: false}}
  - {{name: causal, dtype: bf16, mask: causal}}
  - {{name: rich, dtype: f32, mask: causal, sink: true, score: "s - slope[h] * abs(q - kv)", layout: bhsd}}
  - {{name: odd_tiles, dtype: f32, tiles: {{q: 5, kv: 48}}}}
"""


@pytest.fixture(scope="module")
def dropping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module of SPEC for this machine, checked as every build is."""
    root = tmp_path_factory.mktemp("dropping")
    (root / "dropping.yaml").write_text(SPEC.format(isa="native"))
    result = build(root / "dropping.yaml", out=root)
    yield naive.load(result.folder, "dropping_module")


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def inputs(B: int = 2, H: int = 2, S: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """q, k = 0 and v whose rows are those of the identity: o times S is the mask."""
    zeros = torch.zeros(B, S, H, 64)
    return zeros, zeros, torch.eye(S, 64)[None, :, None].expand(B, S, H, 64).contiguous()


def shown(o: Tensor, S: int) -> Tensor:
    """The mask that o of ``inputs`` prints: [B, H, S, S]."""
    return o.transpose(1, 2)[..., :S] > 0


def test_what_is_timed_drops_weights(dropping: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """fagen's op by name and by `attention`, forward and backward, as well as the peers that have dropout."""
    asked: dict[str, float] = {}
    peer = functional.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        asked["sdpa"] = options["dropout_p"]
        return peer(q, k, v, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(machines, "peak_flops", lambda isa, threads: {})
    monkeypatch.setattr(measure, "_calls_for", lambda call, at_least: 1)
    size = ProblemSize(1, 2, 2, 64, 64)
    told: list[str] = []
    options = Options(sizes=(size,), variants=("full", "rich"), flex=True, rounds=3)
    report = bench(dropping._module, options, told.append)
    assert [set(cell.seconds) for cell in report.cells] == [{"fagen", "sdpa"}] * 2 + [{"fagen"}] * 2
    assert asked == {"sdpa": DROPOUT_P} and not report.failed

    for of in dropping.variants():
        given = draw_inputs(of, size, 0, "cpu")
        assert ("dropout_p" in given.extras) == of.dropout
        if not of.dropout:
            continue
        assert given.extras["dropout_p"] == DROPOUT_P and given.extras["rng_state"].dtype == torch.int64
        named = variant_call(dropping._module, of, given, gradients=False).run()
        kept = getattr(dropping, of.name)(given.q, given.k, given.v, **{**given.extras, "dropout_p": 0.0})
        assert not torch.equal(named, kept)
        if of.name not in ("full", "odd_tiles"):  # two of one function
            assert torch.equal(named, attention_call(dropping._module, of, given, gradients=False).run())


def test_the_unfused_formula_drops_as_many() -> None:
    of = variant(dropout=True)
    unfused = peers.unfused(of, ProblemSize(1, 1, 1, 256, 256), {})
    assert unfused is not None and peers.flex(of, ProblemSize(), {}) is None
    q = torch.zeros(1, 1, 256, 16)
    o = unfused.call(q, q, torch.eye(256)[None, None]) * 256 * (1 - DROPOUT_P)
    assert set(o.unique().round(decimals=4).tolist()) == {0.0, 1.0}
    assert float((o == 0).float().mean()) == pytest.approx(DROPOUT_P, abs=0.01)


@pytest.mark.parametrize("isa", ["avx512_bf16", "avx512", "avx2", "portable"])
def test_every_instruction_set_passes_its_check(tmp_path: Path, isa: str) -> None:
    missing = {feature.replace("_", "") for feature in ISAS[isa].features} - (cpu_features() or frozenset())
    if missing:
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    (tmp_path / "dropping.yaml").write_text(SPEC.format(isa=isa))
    build(tmp_path / "dropping.yaml", out=tmp_path)


@pytest.mark.parametrize("S", [1, 15, 40, 64])
@pytest.mark.parametrize("name", ["full", "odd_tiles"])
def test_the_mask_is_the_definitions(dropping: ModuleType, name: str, S: int) -> None:
    state = torch.tensor([123, 456])
    q, k, v = inputs(S=S)
    o = getattr(dropping, name)(q, k, v, dropout_p=0.5, rng_state=state)
    kept = dropping.dropout_mask(0.5, state, batch=2, heads=2, q_len=S, kv_len=S)
    assert torch.equal(shown(o, S), kept)
    torch.testing.assert_close(o.transpose(1, 2)[..., :S], kept / (0.5 * S))


def test_backward_drops_what_forward_dropped(dropping: ModuleType) -> None:
    state = torch.tensor([-5, 2**50])
    q, k, v = inputs()
    v = v.requires_grad_()
    d_o = torch.randn(2, 40, 2, 64)
    dropping.full(q, k, v, dropout_p=0.25, rng_state=state).backward(d_o)
    kept = dropout_mask(0.25, state, batch=2, heads=2, q_len=40, kv_len=40) / (0.75 * 40)
    torch.testing.assert_close(v.grad, torch.einsum("bhij,bihd->bjhd", kept, d_o))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_gradients_and_those_of_params_and_sink_are_right(dropping: ModuleType, p: float) -> None:
    kernel = dropping.rich
    q, k, v = draw(kernel, B=2, H=4, Hk=2, Sq=70, Skv=90)
    judge(
        kernel, q, k, v, d_o=torch.randn_like(q), d_lse=torch.randn(2, 4, 70), slope=torch.rand(4), sink=torch.randn(4),
        dropout_p=p, rng_state=torch.tensor([1, 2]),
    )  # fmt: skip


def test_nothing_dropped_is_the_op_without_dropout_bit_by_bit(dropping: ModuleType) -> None:
    q, k, v = draw(dropping.full, B=2, H=4, Hk=2, Sq=70, Skv=90)
    d_o = torch.randn_like(q)
    plain = call(dropping.plain, q, k, v, d_o=d_o)
    for given in ({}, {"dropout_p": 0.0, "rng_state": torch.tensor([3, 4])}):
        dropped = call(dropping.full, q, k, v, d_o=d_o, **given)
        assert all(torch.equal(plain[name], dropped[name]) for name in plain)


def test_nearly_everything_dropped_is_zeros_and_no_nan(dropping: ModuleType) -> None:
    q, k, v = draw(dropping.full)
    got = call(dropping.full, q, k, v, d_o=torch.randn_like(q), dropout_p=1 - 2**-50, rng_state=torch.tensor([3, 4]))
    assert all(not got[name].any() for name in ("o", "dq", "dk", "dv"))
    assert got["lse"].isfinite().all()


def test_without_a_state_calls_differ_and_torchs_seed_repeats_them(dropping: ModuleType) -> None:
    q, k, v = inputs()
    torch.manual_seed(7)
    first, second = (dropping.full(q, k, v, dropout_p=0.5) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(dropping.full(q, k, v, dropout_p=0.5), first) and not torch.equal(first, second)
    state = torch.get_rng_state()
    dropping.full(q, k, v)  # nothing dropped: nothing drawn
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_do_not_change_the_mask(dropping: ModuleType) -> None:
    q, k, v = inputs(B=3)
    found = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(dropping.full(q, k, v, dropout_p=0.5, rng_state=torch.tensor([1, 1])))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_checkpointing_repeats_the_mask(dropping: ModuleType) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in draw(dropping.full, Sq=33, Skv=33))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        o: Tensor = dropping.full(q, k, v, dropout_p=0.5)
        return o * o

    torch.manual_seed(1)
    once = torch.autograd.grad(attend(q, k, v).sum(), (q, k, v))
    torch.manual_seed(1)
    again = torch.autograd.grad(checkpoint(attend, q, k, v, use_reentrant=False).sum(), (q, k, v))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_compiled_calls_are_the_eager_ones(dropping: ModuleType) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in draw(dropping.full, Sq=33, Skv=33))
    state = torch.tensor([8, 9])

    def attend(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Tensor:
        o: Tensor = dropping.full(q, k, v, dropout_p=0.5, rng_state=state)
        return o

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    eager = torch.autograd.grad(attend(q, k, v, state).sum(), (q, k, v))
    assert torch.equal(compiled(q, k, v, state), attend(q, k, v, state))
    for one, other in zip(torch.autograd.grad(compiled(q, k, v, state).sum(), (q, k, v)), eager, strict=True):
        assert torch.equal(one, other)


def test_compiled_attention_takes_every_probability(dropping: ModuleType) -> None:
    """torch.compile has a symbol for a number that changes; whether any weight is dropped picks the variant."""
    state = torch.tensor([8, 9])
    compiled = torch.compile(dropping.attention, backend="aot_eager", fullgraph=True, dynamic=True)
    for length, p in ((5, 0.5), (6, 0.25), (7, 0.0), (8, 0.125)):
        q, k, v = draw(dropping.causal, Sq=length, Skv=length)
        given = {"mask": "causal", "dropout_p": p, "rng_state": state}
        assert torch.equal(compiled(q, k, v, **given), dropping.attention(q, k, v, **given))


def test_compiled_calls_without_a_state_draw_one_each_time(dropping: ModuleType) -> None:
    q, k, v = inputs()
    compiled = torch.compile(lambda: dropping.full(q, k, v, dropout_p=0.5), backend="aot_eager", fullgraph=True)
    assert not torch.equal(compiled(), compiled())


def test_vmap_drops_the_same_of_each_call_where_the_state_is_one(dropping: ModuleType) -> None:
    q, k, v = (torch.stack(3 * [tensor]) for tensor in inputs(B=1))
    state = torch.tensor([1, 2])
    one = dropping.full(q[0], k[0], v[0], dropout_p=0.5, rng_state=state)
    found = torch.func.vmap(lambda q, k, v: dropping.full(q, k, v, dropout_p=0.5, rng_state=state))(q, k, v)
    assert torch.equal(found, torch.stack(3 * [one]))
    states = torch.tensor([[1, 2], [1, 3], [2, 2]])
    each = torch.func.vmap(lambda q, k, v, s: dropping.full(q, k, v, dropout_p=0.5, rng_state=s))(q, k, v, states)
    assert torch.equal(each[0], one) and not torch.equal(each[0], each[1])
    with pytest.raises(RuntimeError, match="random"):
        torch.func.vmap(lambda q, k, v: dropping.full(q, k, v, dropout_p=0.5))(q, k, v)


def test_opcheck(dropping: ModuleType) -> None:
    kernel, state = dropping.full, torch.tensor([1, 2])
    q, k, v = draw(kernel)
    opcheck(kernel.ops.forward, (q.requires_grad_(), k, v, state, 0.25, 0.5))
    o, lse = kernel(q.detach(), k, v, return_lse=True)
    opcheck(kernel.ops.forward_out, (q.detach(), k, v, state, 0.25, 0.5, torch.empty_like(o)))
    opcheck(kernel.ops.backward, (torch.randn_like(o), None, q.detach(), k, v, o, lse, state, 0.25, 0.5, 0))


def test_attention_finds_the_variant_that_drops_and_without_need_the_other(dropping: ModuleType) -> None:
    q, k, v = draw(dropping.full, Sq=33, Skv=33)
    state = torch.tensor([1, 2])
    assert torch.equal(dropping.attention(q, k, v), dropping.plain(q, k, v))
    bf16 = [tensor.bfloat16() for tensor in (q, k, v)]
    found = dropping.attention(*bf16, "causal", dropout_p=0.5, rng_state=state)
    assert torch.equal(found, dropping.causal(*bf16, dropout_p=0.5, rng_state=state))
    assert torch.equal(dropping.attention(*bf16, "causal"), dropping.causal(*bf16))
    with pytest.raises(ValueError, match="dropout: true"):
        dropping.attention(q, k, v, "causal", dropout_p=0.5)
    with pytest.warns(UserWarning, match="dropout"):
        slow = dropping.attention(
            q, k, v, "causal", dropout_p=0.5, rng_state=state, fallback="reference", layout="bshd"
        )
    torch.testing.assert_close(slow.bfloat16(), found, rtol=0.05, atol=0.05)


def test_the_modules_own_check_takes_dropout(dropping: ModuleType) -> None:
    q, k, v = draw(dropping.causal, Sq=33, Skv=33)
    assert dropping.check("causal", q, k, v, dropout_p=0.5).verdict == "passed"
    assert dropping.check("causal", q, k, v).verdict == "passed"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dropout_p": 1.0}, "full: dropout_p: expected 0 <= dropout_p < 1, found 1.0"),
        ({"dropout_p": 0.5, "rng_state": torch.zeros(2)}, "rng_state: expected dtype torch.int64, found torch.float32"),
        ({"dropout_p": 0.5, "rng_state": torch.tensor([1])}, r"rng_state: expected shape \[2\], found shape \[1\]"),
    ],
)
def test_what_makes_no_sense_is_refused(dropping: ModuleType, given: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        dropping.full(*inputs(), **given)


def test_a_state_need_not_be_contiguous(dropping: ModuleType) -> None:
    q, k, v = inputs()
    one = dropping.full(q, k, v, dropout_p=0.5, rng_state=torch.tensor([1, 2]))
    assert torch.equal(dropping.full(q, k, v, dropout_p=0.5, rng_state=torch.tensor([[1, 9], [2, 9]])[:, 0]), one)


def test_the_headers_generator_is_the_published_one(tmp_path: Path) -> None:
    """philox.h, a number at a time, and vectors of them, against fagen/runtime/dropout.py."""
    (tmp_path / "main.cpp").write_text(PROGRAM)
    features = Path("/proc/cpuinfo").read_text()
    for flags, needed in ([], ""), (["-mavx2", "-mfma"], " avx2"), (["-mavx512f", "-mavx512dq"], " avx512f"):
        if needed not in features:
            continue
        command = ["g++", "-std=c++17", "-O2", "-Wno-psabi", *flags, f"-I{templates_dir() / 'include'}"]
        subprocess.run([*command, "main.cpp", "-o", "main"], cwd=tmp_path, check=True)
        lines = subprocess.run(["./main"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.split("\n")
        for line in filter(None, lines):
            numbers = [int(word, 16) for word in line.split()]
            low, high, *counter = (torch.tensor(number) for number in numbers[:6])
            assert [int(word) for word in philox(tuple(counter), (low, high))] == numbers[6:]
        assert "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd" in lines


PROGRAM = r"""
#include <cstdio>
#include "fagen/cpu/dropout.h"
using namespace fagen;

int main() {
  uint32_t x = 1;
  const auto next = [&] { return x = x * 1664525u + 1013904223u; };
  for (int n = 0; n < 50; ++n) {
    const PhiloxKey key = n == 0 ? PhiloxKey{~0u, ~0u} : PhiloxKey{next(), next()};
    PhiloxWords<vu> many;
    PhiloxWords<uint32_t> one;
    const int lane = n % kLanes;
    const auto set = [&](vu& words, uint32_t& word) {
      for (int l = 0; l < kLanes; ++l) words[l] = n == 0 ? ~0u : next();
      word = words[lane];
    };
    set(many.x, one.x), set(many.y, one.y), set(many.z, one.z), set(many.w, one.w);
    const PhiloxWords<vu> r = philox<vu>(many, key);
    const PhiloxWords<uint32_t> s = philox<uint32_t>(one, key);
    if (r.x[lane] != s.x || r.y[lane] != s.y || r.z[lane] != s.z || r.w[lane] != s.w) return 1;
    std::printf("%08x %08x %08x %08x %08x %08x %08x %08x %08x %08x\n", key.x, key.y, one.x, one.y, one.z, one.w, s.x,
                s.y, s.z, s.w);
  }
}
"""
