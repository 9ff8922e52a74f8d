"""Dropout of kernels for cards: the mask is the definition's whatever the tiles, and the same in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fagen.build.check import check_folder
from fagen.emulate import driver
from fagen.runtime.check.report import FAILED, explain
from fagen.runtime.dropout import dropout_mask

from .modules import built

SPEC = """
fagen: 1
name: {name}
target: {target}
defaults: {{dtype: f16, head_dim: 64, dropout: true}}
variants:
  - {{name: full}}
  - {{name: small, tiles: {{q: 64, kv: 48}}}}
  - {{name: plain, dropout: false, tiles: {{q: 64, kv: 48}}}}
  - {{name: causal, mask: causal, sink: true}}
"""
# Where two warpgroups share the work of a tile by what they sum: of keys that are wide, of values, and of both.
WIDE = """
fagen: 1
name: dropping_wide
target: sm_90a
defaults: {dtype: f16, dropout: true}
params:
  slope: {dtype: f32, shape: [H], grad: true}
variants:
  - {name: keys, head_dim: 136, value_dim: 72, mask: causal, sink: true}
  - {name: values, head_dim: 64, value_dim: 136}
  - {name: tall, head_dim: 40, value_dim: 136, backward_tiles: {q: 80}, deterministic: true}
  - {name: learned, head_dim: 136, value_dim: 136, score: "30 * tanh((s - slope[h] * (q - kv)) / 30)"}
"""
CASES = ("several-tiles", "drops-nothing", "drops-half", "drops-most", "drops-all", "inf-row", "nan-query")


def of_target(target: str, folder: Path) -> Iterator[ModuleType]:
    yield from built(SPEC.format(name=f"dropping_{target}", target=target), folder)


@pytest.fixture(scope="module")
def turing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from of_target("sm_75", tmp_path_factory.mktemp("sm_75"))


def masks_are_the_definitions(module: ModuleType, name: str) -> None:
    """Of q = k = 0 and one-hot values o is the mask, and of a one-hot gradient dv is its transpose."""
    state = torch.tensor([123, -(2**40)])
    S = 64
    kernel = getattr(module, name)
    zeros = torch.zeros(1, 2 * S, 2, kernel.variant.head_dim, dtype=torch.float16)
    one_hot = torch.eye(S, kernel.variant.value_dim, dtype=torch.float16)
    values = one_hot[None, :, None].repeat(1, 1, 2, 1).requires_grad_()
    kept = dropout_mask(0.5, state, batch=1, heads=2, q_len=2 * S, kv_len=S)
    with driver.use(module):
        o = kernel(zeros, zeros[:, :S].clone(), values, dropout_p=0.5, rng_state=state)
        assert torch.equal(o.transpose(1, 2)[..., :S].float(), kept * 2.0 / S)
        d_o = torch.zeros_like(o)
        d_o[:, :S] = values.detach()
        o.backward(d_o)
    assert torch.equal(values.grad.transpose(1, 2)[..., :S].float(), kept[:, :, :S].mT * 2.0 / S)


@pytest.mark.parametrize("name", ["full", "small"])
def test_the_mask_is_the_definitions(turing: ModuleType, name: str) -> None:
    masks_are_the_definitions(turing, name)


def test_nothing_dropped_is_the_op_without_dropout_bit_by_bit(turing: ModuleType) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 70, 2, 64).half().requires_grad_() for _ in range(3))
    found = []
    with driver.use(turing):
        for name in ("small", "plain"):
            o = getattr(turing, name)(q, k, v)
            found.append((o, *torch.autograd.grad(o.float().square().sum(), (k, v))))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_right(turing: ModuleType, case: str) -> None:
    folder = Path(turing._module.folder)
    (report,) = check_folder(folder, names=["causal"], case=case, seed=0, on="emulator").variants
    assert report.verdict != FAILED, explain(report)


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from of_target("sm_90a", tmp_path_factory.mktemp("sm_90a"))


@pytest.mark.parametrize("case", CASES[:2])
def test_numbers_are_right_on_hopper(hopper: ModuleType, case: str) -> None:
    folder = Path(hopper._module.folder)
    (report,) = check_folder(folder, names=["causal"], case=case, seed=0, on="emulator").variants
    assert report.verdict != FAILED, explain(report)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES[2:])
@pytest.mark.parametrize("name", ["causal", "full"])
def test_all_cases_are_right_on_hopper(hopper: ModuleType, name: str, case: str) -> None:
    folder = Path(hopper._module.folder)
    (report,) = check_folder(folder, names=[name], case=case, seed=0, on="emulator").variants
    assert report.verdict != FAILED, explain(report)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield from built(WIDE, tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("name", ["values", "tall"])
def test_the_mask_of_wide_heads_is_the_definitions(wide: ModuleType, name: str) -> None:
    masks_are_the_definitions(wide, name)


@pytest.mark.parametrize(
    ("name", "case"),
    [("keys", "several-tiles"), ("values", "drops-half"), ("tall", "several-tiles"), ("learned", "drops-half")],
)
def test_numbers_of_wide_heads_are_right(wide: ModuleType, name: str, case: str) -> None:
    folder = Path(wide._module.folder)
    (report,) = check_folder(folder, names=[name], case=case, seed=0, on="emulator").variants
    assert report.verdict != FAILED, explain(report)


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["keys", "values", "tall", "learned"])
def test_all_cases_of_wide_heads_are_right(wide: ModuleType, name: str, case: str) -> None:
    folder = Path(wide._module.folder)
    (report,) = check_folder(folder, names=[name], case=case, seed=0, on="emulator").variants
    assert report.verdict != FAILED, explain(report)
