"""A small transformer learns with fagen's kernels as with PyTorch's, for a short while; examples/train.py goes on."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
defaults: {head_dim: 64, mask: causal}
variants: [{name: causal_d64, dtype: f32}, {name: causal_d64_bf16, dtype: bf16}]
"""


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
    trial = train.Trial(train.Size(layers=2, heads=2, batch=2, length=128, steps=50))
    losses = trial.losses(lambda q, k, v: module.causal_d64(q, k, v))
    assert losses[0] - losses[-1] >= train.LEAST_FALL
    assert trial.strays(losses) == ""

    # As long a run with gradients that are a fiftieth too small is told from these.
    wrong = trial.losses(train.control(lambda q, k, v: module.causal_d64(q, k, v)))
    assert any(apart > 2 * most for apart, most in zip(train.apart(wrong, losses), trial.allowed, strict=True))
    assert trial.strays(wrong).startswith("losses are further apart than PyTorch's own at ")


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_on_the_way_err_no_more_than_those_of_torch(
    trained: tuple[ModuleType, ModuleType], dtype: str
) -> None:
    """In 16 bits losses do not show gradients that are a fiftieth too small; the gradients themselves do."""
    train, module = trained
    size = train.Size(layers=2, heads=2, batch=2, length=128, steps=30)
    kernel = module.causal_d64 if dtype == "f32" else module.causal_d64_bf16

    def fagens(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernel(q, k, v)

    trial = train.Trial(size, dtype=torch.float32 if dtype == "f32" else torch.bfloat16)
    assert trial.strays(trial.losses(fagens)) == ""
    errors = trial.errors({"fagen": fagens, "control": train.control(fagens)})
    assert errors["fagen"].shape == (2, 3)
    assert train.errs(errors["fagen"], errors["flash"]) == ""
    assert train.errs(errors["control"], errors["flash"]).startswith("the gradient of k in layer ")


def test_what_is_no_number_is_an_error(trained: tuple[ModuleType, ModuleType]) -> None:
    train, _ = trained
    flash = torch.ones(2, 3)
    found = flash.clone()
    assert train.errs(2 * found, flash) == ""
    found[1, 2] = torch.nan
    assert train.errs(found, flash) == "the gradient of v in layer 1 errs nan times as much as by flash"


def test_the_example_tells_its_control(
    trained: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `make train-card` runs it, with a smaller model; blind, it fails."""
    train, module = trained
    monkeypatch.setitem(sys.modules, "generated.trained", module)
    monkeypatch.setattr(train, "Size", functools.partial(train.Size, layers=1, heads=1, batch=2, length=64))
    monkeypatch.setattr(train.Size, "steps", 20, raising=False)
    monkeypatch.setattr(train, "LEAST_FALL", 0.1)
    words = ["train.py", "--module", "trained", "--variant", "causal_d64_bf16", "--steps", "20"]
    monkeypatch.setattr(sys, "argv", [*words, "--control"])
    assert train.main() == 0
    shown = capsys.readouterr()
    assert "million weights" in shown.out and "control, with gradients of k times 0.98: the gradient of k" in shown.out
    monkeypatch.setattr(train, "MOST_ERROR", 1e9)
    monkeypatch.setattr(train, "MOST_APART", 1e9)
    assert train.main() == 1 and "error: the control is not told" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(train, "LEAST_FALL", 100.0)
    assert train.main() == 1 and "the loss fell by less than 100.0 nats" in capsys.readouterr().err
