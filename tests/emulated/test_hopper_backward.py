"""What Hopper's backward kernels do, by the op alone: o and lse are the reference's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fagen.emulate import driver
from fagen.runtime.variant import Param

from .modules import built

SPEC = """
fagen: 1
name: hopper_backward
target: sm_90a
defaults: {dtype: bf16, backward: true}
params:
  slope: {dtype: f32, shape: [H]}
variants:
  - {name: plain, head_dim: 128}
  - {name: narrow, head_dim: 64, sink: true, mask: causal}
  - {name: wide, head_dim: 136, value_dim: 40, dtype: f16, mask: "causal and q - kv < 90 and q != 70", layout: bhsd}
  - {name: scored, head_dim: 72, value_dim: 64, align: top_left, mask: causal,
     score: "30 * tanh((s - slope[h] * (q - kv)) / 30)"}
  - {name: sloped, head_dim: 64, sink: true, mask: causal, score: "s - slope[h] * (q - kv)"}
  - {name: sloped_wide, head_dim: 136, value_dim: 40, score: "s - slope[h] * (q - kv)"}
"""

DIAGONALS = """
fagen: 1
name: hopper_diagonals
target: sm_90a
defaults: {dtype: bf16, backward: true}
params:
  bias: {dtype: f32, shape: [H, n]}
  half: {dtype: f16, shape: [Hk, n]}
  brain: {dtype: bf16, shape: [B, n]}
  step: {dtype: i32, shape: [n]}
  near: {dtype: bool, shape: [n]}
variants:
  - {name: distant, head_dim: 64, score: "s + bias[h, q - kv + kv_len]"}
  - {name: turned, head_dim: 72, value_dim: 64, align: top_left, mask: "causal and q - kv < 150 and q != 70",
     score: "s + 0.25 * step[kv - q + 90] if near[i - j] else s - 1"}
  - {name: divided, head_dim: 64, dtype: f16, mask: causal, score: "s / half[hk, q - kv + 300]"}
  - {name: wide, head_dim: 136, value_dim: 40, mask: "near[kv] or q == kv",
     score: "s * half[hk, q - kv] + brain[b, kv - q + 64]"}
"""

FIXED = """
fagen: 1
name: hopper_ordered
target: sm_90a
defaults: {dtype: bf16, backward: true}
variants:
  - {name: ordered, head_dim: 64, deterministic: true, mask: causal}
  - {name: late, head_dim: 64, dtype: f16, deterministic: true}
  - {name: free, head_dim: 64, dtype: f16}
  - {name: holes, head_dim: 64, dtype: f16, deterministic: true, mask: kv // 128 % 2 == 0}
  - {name: holes_free, head_dim: 64, dtype: f16, mask: kv // 128 % 2 == 0}
  - {name: ordered_plain, head_dim: 128, deterministic: true, sink: true}
  - {name: ordered_wide, head_dim: 136, value_dim: 40, deterministic: true, dtype: f16, layout: bhsd,
     mask: "causal and q - kv < 90 and q != 70"}
  - {name: ordered_values, head_dim: 64, value_dim: 136, deterministic: true, sink: true, mask: causal}
"""


@pytest.fixture(scope="module")
def ordered(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from built(FIXED, tmp_path_factory.mktemp("hopper_ordered"))


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from built(SPEC, tmp_path_factory.mktemp("hopper_backward"))


@pytest.fixture(scope="module")
def diagonals(tmp_path_factory: pytest.TempPathFactory, one_cache: None) -> Iterator[ModuleType]:
    yield from built(DIAGONALS, tmp_path_factory.mktemp("hopper_diagonals"))


def given(param: Param, sizes: dict[str, int]) -> Tensor:
    """Elements of a param."""
    shape = [sizes[str(extent)] for extent in param.shape]
    if param.dtype == "i32":
        return torch.randint(-8, 8, shape, dtype=torch.int32)
    if param.dtype == "bool":
        return torch.rand(shape) < 0.5
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    return (torch.rand(shape) + (param.dtype != "f32") * 0.5).to(types[param.dtype])


class Call:
    """Inputs of a variant's backward, and its gradients by name, in float64 and as emulated kernels compute them."""

    def __init__(
        self,
        module: ModuleType,
        name: str,
        q_len: int,
        kv_len: int,
        *,
        batch: int = 1,
        heads: int = 2,
        elements: int = 0,
    ):
        torch.manual_seed(q_len)
        self.module, self.kernel = module, getattr(module, name)
        self.variant = variant = self.kernel.variant
        sizes = {"B": batch, "H": heads, "Hk": heads // 2, "n": elements}

        def drawn(length: int, heads: int, dim: int) -> Tensor:
            x = torch.randn(batch, length, heads, dim).to(torch.bfloat16 if variant.dtype == "bf16" else torch.float16)
            return x.transpose(1, 2).contiguous() if variant.layout == "bhsd" else x

        self.inputs = {
            "q": drawn(q_len, heads, variant.head_dim),
            "k": drawn(kv_len, heads // 2, variant.head_dim),
            "v": drawn(kv_len, heads // 2, variant.value_dim),
        }
        self.d_o, self.d_lse = drawn(q_len, heads, variant.value_dim), torch.randn(batch, heads, q_len)
        self.sink = {"sink": torch.randn(heads)} if variant.sink else {}
        self.params = {param.name: given(param, sizes) for param in variant.params}
        self.scale = variant.head_dim**-0.5

    def want(self) -> dict[str, Tensor]:
        exact = {name: x.double().requires_grad_() for name, x in (self.inputs | self.sink).items()}
        o, lse = self.kernel.reference(**exact, **self.params, return_lse=True, scale=self.scale)
        self.o, self.lse = o.detach().to(self.d_o.dtype), lse.detach().float()
        loss = (o * self.d_o.double()).sum() + torch.where(lse.isfinite(), lse * self.d_lse, 0.0).sum()
        return dict(zip(exact, torch.autograd.grad(loss, list(exact.values())), strict=True))

    def got(self, completions: str = "random", seed: int = 0) -> dict[str, Tensor]:
        extra = (*self.sink.values(), *self.params.values())
        with driver.use(self.module, completions=completions, seed=seed):
            found = self.kernel.ops.backward(
                self.d_o, self.d_lse, *self.inputs.values(), self.o, self.lse, *extra, self.scale, 1
            )
        return dict(zip(self.inputs | self.sink, found, strict=False))


def close(got: dict[str, Tensor], want: dict[str, Tensor]) -> None:
    for name, exact in want.items():
        row = exact.pow(2).mean().sqrt()
        assert (got[name].double() - exact).abs().max() <= 0.06 * row, name
        rounding = 2e-2 if name == "sink" else 5e-3  # o's is in each term of a sum that may cancel
        assert (got[name].double() - exact).pow(2).mean().sqrt() <= rounding * row, name


@pytest.mark.parametrize("completions", ["earliest", "latest", "random"])
def test_tiles_without_a_mask(completions: str, hopper: ModuleType) -> None:
    """Four tiles of queries of each of two heads that share keys, the last of which are past the end."""
    call = Call(hopper, "plain", 200, 150)
    close(call.want() and call.got(completions), call.want())


def test_no_keys_and_fewer_queries_than_a_tile(hopper: ModuleType) -> None:
    call = Call(hopper, "plain", 3, 0)
    call.want()
    assert (call.got()["q"] == 0).all()
    call = Call(hopper, "plain", 5, 1)
    want = call.want()
    close({"v": call.got()["v"]}, {"v": want["v"]})


@pytest.mark.parametrize(("name", "early"), [("plain", ["", "finish"]), ("narrow", ["find", "", "mend", "finish"])])
def test_kernels_that_begin_early_wait_for_those_before(
    name: str, early: list[str], hopper: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The emulator runs launches one after the other, and cannot tell."""
    launched: dict[str, int] = {}
    launch = driver.Emulator._launch

    def watched(self: driver.Emulator, request: Any) -> None:
        launched[request.kernel.decode()] = request.early
        launch(self, request)

    monkeypatch.setattr(driver.Emulator, "_launch", watched)
    call = Call(hopper, name, 5, 7)
    call.want()
    call.got()
    entries = [f"fagen_{name}_backward{'_' if kernel else ''}{kernel}" for kernel in early]
    assert [kernel for kernel, begins_early in launched.items() if begins_early] == entries
    kernels = (Path(hopper.__file__ or "").parent / "ptx" / f"{name}_backward.ptx").read_text().split(".entry ")[1:]
    for text in kernels:
        kernel = text[: text.index("(")]
        assert text.count("griddepcontrol.wait;") == (kernel in entries), kernel
        # All but the last of them, and the one before them, let the next one begin.
        begins = kernel in (f"fagen_{name}_backward_prepare", *entries[:-1])
        assert text.count("griddepcontrol.launch_dependents;") == begins, kernel


@pytest.mark.parametrize("scale", [0.0, -0.1, 1e-30])
def test_scales_of_nothing_and_less(scale: float, hopper: ModuleType) -> None:
    call = Call(hopper, "narrow", 40, 70)
    call.scale = scale
    want = call.want()
    got = call.got()
    close({"v": got["v"]}, {"v": want["v"]})
    if abs(scale) != 1e-30:  # whose dq and dk are below what the dtype holds
        close(got, {name: x for name, x in want.items() if scale != 0.0 or name in ("v", "sink")})


def test_an_lse_of_nothing_beside_a_negative_scale(hopper: ModuleType) -> None:
    """The first row's scores start at 0, and those of the others do not."""
    call = Call(hopper, "plain", 40, 1)
    call.scale = -0.25
    call.inputs["q"].narrow(2 if call.variant.layout == "bhsd" else 1, 0, 1).zero_()
    want = call.want()
    assert (call.lse[..., 0] == 0).all() and (call.lse[..., 1:] != 0).any()
    close({"v": call.got()["v"]}, {"v": want["v"]})


def coarse(hopper: ModuleType, name: str, q_len: int, kv_len: int, *, every: int) -> Call:
    """Scores around 2^20 of some rows, exact in float32, whose lse is one to an eighth: weights would be wrong by a few
    percent."""
    call = Call(hopper, name, q_len, kv_len)
    call.params = {name: torch.tensor([0.5, 1.0]) for name in call.params}
    call.scale = 0.125
    for each in ("q", "k"):
        call.inputs[each] = call.inputs[each].round()
    call.inputs["q"][:, ::every, :, 0] = 4096.0
    call.inputs["k"][..., 0] = 2048.0
    return call


@pytest.mark.parametrize("name", ["narrow", "sloped", "sloped_wide"])
def test_what_rounding_lse_leaves_out_is_made_up_for(name: str, hopper: ModuleType) -> None:
    call = coarse(hopper, name, 130, 130, every=3)
    want = call.want()
    close({"v": call.got()["v"]}, {"v": want["v"]})


@pytest.mark.parametrize("name", ["narrow", "sloped"])
def test_what_rounding_lse_leaves_out_is_made_up_for_in_rows_made_again(name: str, hopper: ModuleType) -> None:
    """A query of NaN sees keys up to 20, and those of its block are made again, pair by pair."""
    call = coarse(hopper, name, 130, 130, every=3)
    want = call.want()
    call.inputs["q"][0, 20] = torch.nan
    got = call.got()
    assert got["v"][0, :21].isnan().all()
    close({"v": got["v"][:, 21:128]}, {"v": want["v"][:, 21:128]})


@pytest.mark.parametrize("name", ["narrow", "sloped"])
def test_what_rounding_lse_leaves_out_is_made_up_for_in_a_sinks_weight(name: str, hopper: ModuleType) -> None:
    """Of few rows, so that what is wrong with one is not evened out by others."""
    call = coarse(hopper, name, 2, 130, every=1)
    call.sink = {"sink": torch.tensor([2.0**20 + 4.0, 2.0**20 + 5.0])}
    want = call.want()
    close({"sink": call.got()["sink"]}, {"sink": want["sink"]})


@pytest.mark.parametrize("completions", ["earliest", "latest"])
def test_half_of_the_queries_each_and_a_sink(completions: str, hopper: ModuleType) -> None:
    """Of head dims up to 64; blocks of keys that few queries see, some that none does, two batch entries."""
    call = Call(hopper, "narrow", 230, 330, batch=2)
    want = call.want()
    close(call.got(completions), want)


def test_rows_of_nan_reach_what_sees_them(hopper: ModuleType) -> None:
    """Of a key and its value that few queries see, and of a query and the gradient of its output."""
    call = Call(hopper, "narrow", 60, 90)
    call.want()
    clean = call.got()
    for name, row in (("k", 80), ("v", 80), ("q", 20)):
        held = call.inputs[name][0, row].clone()
        call.inputs[name][0, row] = torch.nan
        got = call.got()
        call.inputs[name][0, row] = held
        seen = range(50, 60) if name != "q" else range(20, 21)  # queries that see key 80; or that one
        others = [i for i in range(60) if i not in seen]
        assert got["q"][0, list(seen)].isnan().all()
        torch.testing.assert_close(got["q"][0, others], clean["q"][0, others], atol=2e-3, rtol=2e-2)
        if name == "q":
            assert got["k"][0, :51].isnan().all() and got["v"][0, :51].isnan().all()
            torch.testing.assert_close(got["v"][0, 51:], clean["v"][0, 51:], atol=2e-3, rtol=2e-2)


def test_few_blocks_of_threads_look_for_what_is_to_be_made_again(hopper: ModuleType) -> None:
    """More blocks of keys than 32 for each of those: here there are three multiprocessors, and four on each."""
    call = Call(hopper, "narrow", 4, 6, batch=32 * 12 + 3)
    want = call.want()
    lost = [1, 13, 32 * 12 + 1]  # all three of one block of threads
    call.inputs["q"][lost, 1] = torch.nan  # which sees keys up to 3
    got = call.got()
    for name in ("k", "v"):
        assert got[name][lost, :4].isnan().all()
        got[name][lost, :4] = want[name][lost, :4].to(got[name].dtype)
    close({name: got[name] for name in ("k", "v")}, {name: want[name] for name in ("k", "v")})


def test_rows_that_are_no_whole_chunks(hopper: ModuleType) -> None:
    """Of o, which kernels read as it is."""
    call = Call(hopper, "plain", 70, 30)
    call.want()
    want = call.got()
    call.o = torch.nn.functional.pad(call.o, (0, 1))[..., :-1]
    got = call.got()
    assert torch.equal(got["k"], want["k"]) and torch.equal(got["v"], want["v"])
    torch.testing.assert_close(got["q"], want["q"], atol=0.0, rtol=1e-2)


@pytest.mark.parametrize("completions", ["latest", "random"])
def test_one_warpgroup_has_values_the_other_keys(completions: str, hopper: ModuleType) -> None:
    """Of wide heads, whose last slabs are filled up: an odd number of dQ's parts, a window, a row that sees nothing."""
    call = Call(hopper, "wide", 150, 150)
    want = call.want()
    got = call.got(completions)
    close(got, want)
    assert (got["q"][0, :, 70] == 0).all()


def test_a_score(hopper: ModuleType) -> None:
    call = Call(hopper, "scored", 140, 200)
    want = call.want()
    close(call.got(), want)


@pytest.mark.parametrize(
    ("q_len", "kv_len", "elements", "completions"),
    [
        (201, 333, 534, "earliest"),
        (333, 150, 483, "latest"),
        (201, 333, 300, "random"),  # it ends within tiles
        (90, 100, 7, "random"),  # it is shorter than a tile
        (40, 70, 0, "random"),
    ],
)
def test_what_is_read_along_diagonals(
    q_len: int, kv_len: int, elements: int, completions: str, diagonals: ModuleType
) -> None:
    """Of heads that share keys, with lengths that end within tiles."""
    call = Call(diagonals, "distant", q_len, kv_len, heads=4, elements=elements)
    want = call.want()
    close(call.got(completions), want)


@pytest.mark.parametrize("lengths", [(90, 211), (211, 90), (257, 257)])
def test_integers_and_truth_along_diagonals_the_other_way(lengths: tuple[int, int], diagonals: ModuleType) -> None:
    """Of indices outside the arrays on both sides, and queries before the first tile of keys."""
    call = Call(diagonals, "turned", *lengths, elements=75)
    want = call.want()
    close(call.got(), want)


def test_rows_past_the_end_are_none_where_what_they_read_is_no_divisor(diagonals: ModuleType) -> None:
    """Of queries past the end elements are 0, or none."""
    call = Call(diagonals, "divided", 130, 130, batch=2, elements=430)
    want = call.want()
    close(call.got(), want)


@pytest.mark.parametrize("completions", ["earliest", "latest"])
def test_two_reads_along_diagonals_of_wide_heads(completions: str, diagonals: ModuleType) -> None:
    """And one of the mask, which has it from memory."""
    call = Call(diagonals, "wide", 150, 130, batch=2, heads=4, elements=140)
    want = call.want()
    close(call.got(completions), want)


@pytest.mark.parametrize(
    ("name", "q_len", "kv_len", "batch"),
    [
        ("ordered", 230, 330, 2),
        ("ordered", 150, 290, 1),
        ("ordered_plain", 130, 400, 1),
        ("ordered_plain", 70, 150, 3),
        ("ordered_wide", 230, 230, 1),
        ("ordered_values", 150, 150, 1),
    ],
)
def test_deterministic_gradients_are_the_same_bits_in_any_order(
    name: str, q_len: int, kv_len: int, batch: int, ordered: ModuleType
) -> None:
    """Of heads that share keys, of blocks of keys that see no row of some tiles, and of heads side by side."""
    call = Call(ordered, name, q_len, kv_len, batch=batch)
    want = call.want()
    found = [call.got(how, seed) for seed, how in enumerate(("earliest", "latest", "random", "random"))]
    close(found[0], want)
    assert not [each for each in want for got in found[1:] if not torch.equal(found[0][each], got[each])]


def dqs(module: ModuleType, name: str, kv_len: int) -> list[Tensor]:
    """dQ of several orders. What five blocks of keys add nearly cancels, so that its last bits show: a row's dS add up
    to 0, and what keys differ in is small beside what they have in common."""
    call = Call(module, name, 224, kv_len)
    call.inputs["k"] += 8.0
    call.d_lse.zero_()
    call.want()
    return [call.got("random" if seed else "latest", seed)["q"] for seed in range(4)]


@pytest.mark.parametrize(("free", "fixed", "kv_len"), [("free", "late", 640), ("holes_free", "holes", 1152)])
def test_bits_of_sums_are_of_the_order_that_blocks_add_in(
    free: str, fixed: str, kv_len: int, ordered: ModuleType
) -> None:
    """Of blocks that see nothing, and are done at once, too: those after them wait for those before them alone."""
    first, *others = dqs(ordered, free, kv_len)
    assert any(not torch.equal(first, got) for got in others)
    first, *others = dqs(ordered, fixed, kv_len)
    assert all(torch.equal(first, got) for got in others)
