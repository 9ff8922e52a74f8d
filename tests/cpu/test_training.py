"""A small transformer learns with fagen's kernels as with PyTorch's, for a short while; examples/train.py goes on."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import naive  # beside this file
import pytest
import torch
from torch import Tensor

from fagen.build import build

ROOT = Path(__file__).parents[2]
SPEC = """
fagen: 1
name: trained
target: cpu
defaults: {dtype: f32}
variants: [{name: causal_d64, head_dim: 64, mask: causal}]
"""


class ScaledGradient(torch.autograd.Function):
    """What passes is left alone, and its gradient comes back times 0.98."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 0.98


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ModuleType]:
    """The example, and a module with what it trains by."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "trained.yaml").write_text(SPEC)
    module = naive.load(build(folder / "trained.yaml", out=folder, check="off").folder, "trained")
    spec = importlib.util.spec_from_file_location("train_example", ROOT / "examples" / "train.py")
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["train_example"] = example  # where its dataclasses look for their names
    spec.loader.exec_module(example)
    return example, module


def test_losses_fall_and_come_no_further_apart_than_those_of_torch(trained: tuple[ModuleType, ModuleType]) -> None:
    train, module = trained
    size = train.Size(layers=2, heads=2, batch=2, length=128, steps=50)
    losses, strayed, may = train.compare(lambda q, k, v: module.causal_d64(q, k, v), size)
    assert losses[0] - losses[-1] >= 1.5
    assert all(apart <= most for apart, most in zip(strayed, may, strict=True))

    # As long a run with gradients that are a fiftieth too small is told from these.
    wrong = train.train(lambda q, k, v: module.causal_d64(q, ScaledGradient.apply(k), v), size)
    assert any(apart > 2 * most for apart, most in zip(train.apart(wrong, losses), may, strict=True))
