"""`fagen bench --memory`: what a training step holds, as torch sees it on this CPU, and by a card's counts."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from fagen.bench import memory
from fagen.bench.memory import CardMeter, CpuMeter, Growth
from fagen.bench.run import Options
from fagen.bench.run import memory as measure
from fagen.cli import app
from fagen.costs import ProblemSize, costs
from fagen.errors import UsageError
from fagen.plan import plan
from fagen.resources import specs_dir
from fagen.spec import expand, load

SIZE = ProblemSize(batch=2, heads=4, kv_heads=4, q_len=256, kv_len=256)
ROWS = 2 * 4 * 256


class Cuda:
    """torch.cuda's counts of memory, and the driver's: torch allocates, others (``elsewhere``) do behind its back."""

    def __init__(self) -> None:
        self.allocated = self.peak = 100
        self.elsewhere = 1000

    def take(self, torchs: int, others: int = 0) -> None:
        self.allocated += torchs
        self.elsewhere += others
        self.peak = max(self.peak, self.allocated)

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None: ...

    def memory_allocated(self) -> int:
        return self.allocated

    def memory_reserved(self) -> int:
        return 2 * self.allocated

    def max_memory_allocated(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.allocated

    def mem_get_info(self) -> tuple[int, int]:
        return 10**6 - 2 * self.allocated - self.elsewhere, 10**6


def test_a_card_counts_what_torch_does_not_see() -> None:
    """The peak within a step, not its end; what others take at a first step is told from what each step takes."""
    cuda = Cuda()
    outside = [64, 8]

    def step() -> None:
        cuda.take(50, outside.pop(0))
        cuda.take(-30)
        cuda.take(-20)

    cuda.take(500)  # a peak of before
    cuda.take(-500)
    assert CardMeter(cuda).grown(step) == Growth(torch=50, outside=8, once=64)
    assert CardMeter(cuda).dares(10**15)


def test_a_cpu_counts_what_its_allocator_gives_out() -> None:
    x = torch.randn(1000, 1000, requires_grad=True)

    def step() -> object:  # exp's result, and the sum's argument or the gradient
        return torch.autograd.grad((x * 2).exp().add(1).sum(), x)

    growth = CpuMeter().grown(step)
    assert growth.torch == pytest.approx(2 * 4e6, rel=0.01) and growth.outside == growth.once == 0
    assert CpuMeter().dares(1000) and not CpuMeter().dares(10**13)


def test_a_step_of_a_module(small: ModuleType) -> None:
    """What cannot be spared is counted from the tensors; whole score matrices are far more."""
    told: list[str] = []
    report = measure(small._module, Options(sizes=(SIZE,), variants=("causal_d16",)), told.append)
    assert told == ["causal_d16 B2,H4,S256: memory of a training step"]
    (step,) = report.steps
    assert step.case == "causal_d16 B2,H4,S256"
    tensor = ROWS * 16 * 4
    assert (step.inputs, step.outputs, step.gradients) == (3 * tensor, tensor + 4 * ROWS, 4 * tensor)
    assert step.dq == tensor and step.needed == 8 * tensor + 4 * ROWS
    assert step.fagen >= step.needed and step.beyond == (step.fagen - step.needed) / tensor
    pairs = ROWS * 256
    assert step.unfused is not None and step.computed_from is None
    assert step.unfused > 3 * 4 * pairs
    head, row = report.rows()
    assert head[5] == "beyond, of a float32 dQ" and row[:2] == ["causal_d16", "B2,H4,S256"]
    assert float(row[2]) == pytest.approx(step.needed / 2**20, abs=0.05)
    assert report.summary()[0].endswith("of a float32 dQ at most (causal_d16 B2,H4,S256)")


def test_what_does_not_fit_is_computed(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """From two lengths, as exactly as what grows with a length and what grows with pairs."""
    options = Options(sizes=(SIZE,), variants=("causal_d16",))
    (whole,) = measure(small._module, options).steps
    honest = memory._unfused_peak

    def full(of: object, size: ProblemSize, *rest: object) -> int | None:
        return None if size.q_len > 128 else honest(of, size, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(memory, "_unfused_peak", full)
    (step,) = measure(small._module, options).steps
    assert step.computed_from == 128 and step.unfused is not None and whole.unfused is not None
    assert step.unfused == pytest.approx(whole.unfused, rel=0.02)
    assert "(computed from S 128)" in measure(small._module, options).rows()[1][6]
    monkeypatch.setattr(memory, "_unfused_peak", lambda *arguments: None)
    (step,) = measure(small._module, options).steps
    assert step.unfused is None and measure(small._module, options).rows()[1][6:] == ["–", "–"]


def test_a_formula_that_is_out_of_memory_is_a_length_that_does_not_fit(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[str] = []

    def full(*arguments: object, **options: object) -> object:
        raise torch.OutOfMemoryError("too large")

    monkeypatch.setattr(memory, "peer_call", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append("freed"))
    (step,) = measure(small._module, Options(sizes=(SIZE,), variants=("causal_d16",))).steps
    assert step.unfused is None and len(freed) == 3  # of 256, 128 and 64 keys


def test_a_step_that_fails_loses_no_other(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [of.name for of in small.variants() if of.backward]
    honest, left = memory._step, [1]

    def failing(*arguments: object) -> object:
        if left:
            left.clear()
            raise RuntimeError("a fault\nand more of it")
        return honest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(memory, "_step", failing)
    report = measure(small._module, Options(sizes=(SIZE,)))
    assert report.failed == (f"{names[0]} B2,H4,S256: a fault",)
    assert [step.case.split()[0] for step in report.steps] == names[1:]


def test_at_16384_if_nothing_is_said(small: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ProblemSize] = []

    def seen(module: object, of: object, size: ProblemSize, *rest: object) -> object:
        asked.append(size)
        raise RuntimeError("enough")

    monkeypatch.setattr(memory, "_step", seen)
    measure(small._module, Options(variants=("causal_d16",)))
    assert asked == [ProblemSize(1, 128, 128, 16384, 16384)]
    without = next(of.name for of in small.variants() if not of.backward)
    with pytest.raises(UsageError, match="--memory: small has no gradients"):
        measure(small._module, Options(variants=(without,)))


def test_the_command(small_folder: Path, tmp_path: Path) -> None:
    words = ["bench", str(small_folder), "--memory", "-v", "causal_d16", "--size", "B1,H2,S128"]
    result = CliRunner().invoke(app, [*words, "--write", str(tmp_path / "memory.json")])
    assert result.exit_code == 0, result.output
    assert "beyond inputs, outputs and gradients: " in result.stdout and "needed  fagen MiB" in result.stdout
    (step,) = json.loads((tmp_path / "memory.json").read_text())
    assert step["case"] == "causal_d16 B1,H2,S128" and step["needed"] <= step["fagen"] < step["unfused"]
    found = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert found["steps"][0]["needed"] == step["needed"] and found["failed"] == []
    refused = CliRunner().invoke(app, [*words, "--flex"])
    assert refused.exit_code == 2 and "--memory is measured alone" in refused.stderr


@pytest.mark.parametrize("name", ["a100", "h100_training"])
def test_backward_of_cards_holds_one_float32_dq_and_notes(name: str) -> None:
    """As the plan tells the launch, and `fagen explain` its reader: 16 bytes of notes a row at most."""
    spec = load(specs_dir() / f"{name}.yaml")
    rows = {"B": 2, "H": 4, "Hk": 4, "Sq": 1024, "Skv": 1024}
    for of in expand(spec):
        made = plan(of, spec.targets[0])
        extra = costs(made, "backward").extra
        held = float(extra.subs({symbol: rows[symbol.name] for symbol in extra.free_symbols})) / (2 * 4 * 1024)
        columns = made.backward.sum_bytes / 4  # type: ignore[union-attr]
        assert of.head_dim <= columns < of.head_dim + 64
        assert 4 * columns < held <= 4 * columns + 16, of.name
