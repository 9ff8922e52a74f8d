"""Gradients of params by Hopper's backward kernels, by the op alone: o and lse are the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fagen.build.check import check_folder
from fagen.emulate import driver
from fagen.errors import PlanError
from fagen.runtime.check.report import FAILED, explain

from .modules import built

HEAD = """
fagen: 1
name: {name}
target: sm_90a
defaults: {{dtype: f16, backward: true}}
params:
  one: {{dtype: f32, shape: [], grad: true}}
  slope: {{dtype: f32, shape: [H], grad: true}}
  each: {{dtype: f32, shape: [B, H], grad: true}}
  row: {{dtype: f32, shape: [B, H, n], grad: true}}
  key: {{dtype: f32, shape: [B, Hk, n], grad: true}}
  rel: {{dtype: f32, shape: [H, n], grad: true}}
  bias: {{dtype: f32, shape: [B, H, Sq, Skv], grad: true}}
  pairs: {{dtype: f32, shape: [n], grad: true}}
  given: {{dtype: f32, shape: [B, H, n]}}
  kind: {{dtype: i32, shape: [B, n]}}
  still: {{dtype: f32, shape: [H], grad: true}}
"""
SPEC = """variants:
  - {name: heads, head_dim: 64, mask: causal, score: "s * each[b, h] - slope[h] * (q - kv) * one"}
  - {name: lines, head_dim: 72, value_dim: 64, align: top_left, mask: "kv <= q + 20 and q != 70",
     score: "s + row[b, h, q] * key[b, hk, kv]"}
  - {name: narrow, head_dim: 64, mask: causal, score: "s + row[b, h, q] * key[b, hk, kv] + rel[h, q - kv + 60]"}
  - {name: dropped, head_dim: 64, dropout: true, mask: causal, score: "s + row[b, h, q] + rel[h, abs(q - kv)]"}
  - {name: divided, head_dim: 64, score: "s / given[b, h, q]"}
  - {name: distant, head_dim: 128, score: "s + rel[h, q - kv + kv_len]"}
  - {name: dense, head_dim: 64, value_dim: 128, sink: true, layout: bhsd, mask: causal,
     score: "softcap(20) + bias[b, h, i, j] * floor(still[h])"}
  - {name: wide, head_dim: 192, value_dim: 136, mask: "causal and q - kv < 90 and q != 40",
     score: "30 * tanh((s - slope[h] * (q - kv)) / 30) + rel[h, min(q - kv, 50)] + row[b, h, q]"}
  - {name: widest, head_dim: 256, score: "s + pairs[kind[b, q] * 3 + kind[b, kv]] + key[b, hk, kv]"}
"""
FIXED = """variants:
  - {name: fixed, head_dim: 64, deterministic: true, mask: causal,
     score: "s * each[b, h] - slope[h] * (q - kv) * one + row[b, h, q] * key[b, hk, kv]"}
  - {name: fixed_wide, head_dim: 136, deterministic: true,
     score: "softcap(20) + rel[h, q - kv + kv_len] + bias[b, h, i, j] + pairs[kind[b, q] * 3 + kind[b, kv]]"}
"""


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from built(HEAD.format(name="hopper_params") + SPEC, tmp_path_factory.mktemp("hopper_params"))


@pytest.fixture(scope="module")
def deterministic(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    try:
        yield from built(HEAD.format(name="hopper_fixed") + FIXED, tmp_path_factory.mktemp("hopper_fixed"))
    except PlanError as error:
        pytest.skip(str(error))


class Call:
    """Inputs of a variant's backward, and its gradients by name, in float64 and as emulated kernels compute them."""

    def __init__(self, module: ModuleType, name: str, q_len: int, kv_len: int, *, heads: int = 4, batch: int = 2):
        torch.manual_seed(q_len)
        self.module, self.kernel = module, getattr(module, name)
        self.variant = variant = self.kernel.variant
        sizes = {"B": batch, "H": heads, "Hk": heads // 2, "Sq": q_len, "Skv": kv_len, "n": q_len + kv_len}

        def drawn(length: int, heads: int, dim: int) -> Tensor:
            x = torch.randn(batch, length, heads, dim).half()
            return x.transpose(1, 2).contiguous() if variant.layout == "bhsd" else x

        self.inputs = {
            "q": drawn(q_len, heads, variant.head_dim),
            "k": drawn(kv_len, heads // 2, variant.head_dim),
            "v": drawn(kv_len, heads // 2, variant.value_dim),
        }
        self.d_o, self.d_lse = drawn(q_len, heads, variant.value_dim), torch.randn(batch, heads, q_len)
        self.sink = {"sink": torch.randn(heads)} if variant.sink else {}
        self.params = {
            param.name: torch.randint(3, [sizes[str(extent)] for extent in param.shape], dtype=torch.int32)
            if param.dtype == "i32"
            else 0.3 + torch.rand([sizes[str(extent)] for extent in param.shape])
            for param in variant.params
        }
        self.scale = variant.head_dim**-0.5

    def want(self) -> dict[str, Tensor]:
        exact = {name: x.double().requires_grad_() for name, x in (self.inputs | self.sink).items()}
        params = {name: x.double().requires_grad_() if x.is_floating_point() else x for name, x in self.params.items()}
        o, lse = self.kernel.reference(**exact, **params, return_lse=True, scale=self.scale)
        self.o, self.lse = o.detach().to(self.d_o.dtype), lse.detach().float()
        loss = (o * self.d_o.double()).sum() + torch.where(lse.isfinite(), lse * self.d_lse, 0.0).sum()
        leaves = exact | {name: x for name, x in params.items() if x.requires_grad}
        found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True, allow_unused=True)
        return dict(zip(leaves, found, strict=True))

    def got(self, completions: str = "random", seed: int = 0) -> dict[str, Tensor]:
        extra = (*self.sink.values(), *self.params.values())
        needs = sum(1 << n for n, param in enumerate(self.variant.params, 1) if param.grad) | self.variant.sink
        with driver.use(self.module, completions=completions, seed=seed):
            found = self.kernel.ops.backward(
                self.d_o, self.d_lse, *self.inputs.values(), self.o, self.lse, *extra, self.scale, needs
            )
        learned = [param.name for param in self.variant.params if param.grad]
        return dict(zip([*self.inputs, *self.sink, *learned], found, strict=True))


def close(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for name, exact in want.items():
        difference, rms = got[name].double() - exact, exact.pow(2).mean().sqrt()
        assert difference.abs().max() <= 0.06 * rms, f"{name}: {difference.abs().max()} of {rms}"
        assert difference.pow(2).mean().sqrt() <= 5e-3 * rms, f"{name}: {difference.pow(2).mean().sqrt()} of {rms}"


@pytest.mark.parametrize("completions", ["earliest", "latest"])
def test_one_number_and_one_a_head(completions: str, hopper: ModuleType) -> None:
    """Sums that go on from tile to tile, of each head that shares keys; those of scores that are multiplied."""
    call = Call(hopper, "heads", 230, 300)
    want = call.want()
    close(call.got(completions), want)


def test_rows_and_keys(hopper: ModuleType) -> None:
    """A row that no key sees; more queries than keys."""
    call = Call(hopper, "lines", 210, 150)
    want = call.want()
    got = call.got()
    close(got, want)
    assert (got["row"][..., 70] == 0).all() and (want["row"][..., 70] == 0).all()


@pytest.mark.parametrize(("q_len", "kv_len"), [(200, 150), (70, 290)])
def test_distances(q_len: int, kv_len: int, hopper: ModuleType) -> None:
    call = Call(hopper, "distant", q_len, kv_len, batch=1)
    want = call.want()
    close(call.got(), want)


def test_what_lanes_sum_of_narrow_heads(hopper: ModuleType) -> None:
    """Of an odd number of sixteen query rows a tile."""
    call = Call(hopper, "narrow", 200, 170)
    want = call.want()
    close(call.got(), want)


def test_dropped_pairs_have_gradients_of_their_own(hopper: ModuleType) -> None:
    (report,) = check_folder(
        Path(hopper._module.folder), names=["dropped"], case="several-tiles", seed=0, on="emulator"
    ).variants
    assert report.verdict != FAILED, explain(report)


def test_rows_past_the_end_add_nothing_whatever_their_scores(hopper: ModuleType) -> None:
    """Of which queries and what a param holds are 0, and so scores are 0 / 0."""
    call = Call(hopper, "divided", 70, 128)
    call.params["given"] = call.params["given"][..., :128].contiguous()
    want = call.want()
    del want["given"]
    close(call.got(), want)


def test_an_element_for_each_pair(hopper: ModuleType) -> None:
    """Of scores that are held until then; and a param that no score changes with."""
    call = Call(hopper, "dense", 100, 140)
    want = call.want()
    got = call.got()
    close(got, want)
    assert (got["still"] == 0).all()


@pytest.mark.parametrize("completions", ["latest", "random"])
def test_wide_heads(completions: str, hopper: ModuleType) -> None:
    call = Call(hopper, "wide", 150, 150)
    want = call.want()
    close(call.got(completions), want)


def test_what_is_read_by_what_a_param_holds(hopper: ModuleType) -> None:
    call = Call(hopper, "widest", 80, 100)
    want = call.want()
    close(call.got(), want)


def test_no_keys(hopper: ModuleType) -> None:
    call = Call(hopper, "distant", 3, 0)
    call.want()
    assert (call.got()["rel"] == 0).all()


def test_only_what_is_asked_for_is_summed(hopper: ModuleType) -> None:
    call = Call(hopper, "heads", 30, 40)
    call.want()
    with driver.use(hopper):
        extra = tuple(call.params.values())
        found = call.kernel.ops.backward(
            call.d_o, call.d_lse, *call.inputs.values(), call.o, call.lse, *extra, call.scale, 1 << 2
        )
    sizes = [x.numel() for x in found[3:]]
    assert sum(1 for size in sizes if size) == 1


def test_excluded_pairs_of_nan_reach_no_gradient(hopper: ModuleType) -> None:
    """Of a key or a value that few queries see, in a tile whose other rows do not: with the o and lse there would be
    without it, it is in these pairs alone."""
    call = Call(hopper, "lines", 60, 90, batch=1)
    call.want()
    clean = call.got()
    for name in ("k", "v"):
        held = call.inputs[name][0, 75].clone()
        call.inputs[name][0, 75] = torch.nan  # queries 55 to 59 see it
        got = call.got()
        call.inputs[name][0, 75] = held
        assert got["row"][0, :, 55:60].isnan().all() and got["key"][0, :, 75].isnan().all()
        torch.testing.assert_close(got["row"][0, :, :55], clean["row"][0, :, :55])
        others = [j for j in range(80) if j != 75]
        torch.testing.assert_close(got["key"][0, :, others], clean["key"][0, :, others])


@pytest.mark.parametrize(("name", "q_len", "kv_len"), [("fixed", 130, 150), ("fixed_wide", 100, 140)])
def test_the_same_bits_in_any_order(name: str, q_len: int, kv_len: int, deterministic: ModuleType) -> None:
    call = Call(deterministic, name, q_len, kv_len)
    want = call.want()
    first, *others = (call.got(completions, seed) for seed, completions in enumerate(("earliest", "latest", "random")))
    close(first, want)
    assert not [each for each in want for got in others if not torch.equal(first[each], got[each])]
