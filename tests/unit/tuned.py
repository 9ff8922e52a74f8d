"""Stand-ins for the compiler and the card that `fagen tune` needs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from variants import variant

from fagen.bench.run import Options
from fagen.build.progress import Silent
from fagen.costs import ProblemSize
from fagen.errors import CompileError, Problem
from fagen.runtime.check.report import Failure, VariantReport
from fagen.runtime.check.where import Where
from fagen.size import parse_size
from fagen.spec import expand, load
from fagen.tune import measure, sweep
from fagen.tune.folder import Candidate, Sweep, Swept
from fagen.tune.measure import Bench, Measuring
from fagen.tune.results import Results
from fagen.tune.sweep import compile_sweep

ROOT = Path(__file__).parents[2]
SPEC = """fagen: 1
name: mine
target: sm_90a
defaults: {dtype: bf16, backward: false, head_dim: 128}
variants:
  - {name: causal, mask: causal}
  - {name: full}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(SPEC)
    return path


class Compiler:
    """In the place of `fagen.build`: publishes a manifest. It refuses variants of ``refused``; those of ``spilling``
    spill."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.now = 0.0
        self.refused: set[str] = set()
        self.spilling: set[str] = set()
        self.kernel = "fagen_{}"  # which of theirs does, by their names

    def __call__(self, path: Path, *, out: Path, check: str, jobs: int | None, progress: Any) -> None:
        assert check == "off" and path.parent == out
        found = expand(load(path))
        for each in found:
            if each.name in self.refused:
                raise CompileError(Problem(f"too many resources (compiling {each.name} forward)"))
        self.built.append(path.stem)
        self.now += 10.0
        folder = out / path.stem
        folder.mkdir(exist_ok=True)
        taken = {"spill_stores": 8, "spill_loads": 12}
        entries = [
            {
                "variant": each.to_json(),
                "objects": [each.name],
                "resources": {
                    self.kernel.format(each.name): taken if each.name in self.spilling else dict.fromkeys(taken, 0)
                },
            }
            for each in found
        ]
        (folder / "manifest.json").write_text(json.dumps({"fagen": "0", "variants": entries}))


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    found = Compiler()
    monkeypatch.setattr(sweep, "build", found)
    monkeypatch.setattr(sweep, "_MODULE", 8)
    monkeypatch.setattr(sweep.time, "monotonic", lambda: found.now)
    return found


def compiled(spec: Path, folder: Path, **options: Any) -> Sweep:
    return compile_sweep(spec, folder, progress=Silent, tell=lambda line: None, **options)


class Card:
    """Machine, timer, modules and check in one. ``milliseconds`` are those of each candidate, by name; ``wrong`` fails
    its first case, ``subtle`` only the whole check."""

    title = "a card"
    device = "cpu"

    def __init__(self, milliseconds: dict[str, float]):
        self.milliseconds = milliseconds
        self.wrong: set[str] = set()
        self.subtle: set[str] = set()
        self.now = 0.0
        self.samples: list[str] = []
        self.checks: list[tuple[str | None, list[str]]] = []
        self.stop_after: int | None = None

    def kernel(self, name: str) -> Any:
        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
            return name

        kernel: Any = SimpleNamespace(variant=variant(name=name, backward=False))
        return type("Kernel", (), {"variant": kernel.variant, "__call__": lambda self, *tensors: call(*tensors)})()

    def load(self, folder: Path) -> Any:
        kernels = {name: self.kernel(name) for name in self.milliseconds}
        return SimpleNamespace(kernels=kernels, variant=lambda name: kernels[name].variant)

    def timer(self, how: object) -> Card:
        return self

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        name = str(call())
        assert name not in self.wrong, "it was run before it was checked"

        def sample() -> float:
            if self.stop_after is not None:
                self.stop_after -= 1
                if self.stop_after < 0:
                    raise KeyboardInterrupt
            self.samples.append(name)
            self.now += 1.0
            return self.milliseconds[name] / 1e3

        return sample

    def sizes(self, which: object) -> Sequence[ProblemSize]:
        return [parse_size("B1,H2,S16"), parse_size("B1,H2,S32")]

    def in_use(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check(self, folder: Path, names: Sequence[str], wish: Any) -> list[VariantReport]:
        self.checks.append((wish.case, list(names)))
        self.now += len(names)
        bad = self.wrong | (self.subtle if wish.case is None else set())
        failure = (Failure("several-tiles", "o is wrong"),)
        return [
            VariantReport(name, "failed" if name in bad else "passed", 1, "auto", failures=failure * (name in bad))
            for name in names
        ]

    def bench(self) -> Bench:
        return Bench(machine_for=lambda module: self, load=self.load, check=self.check, clock=lambda: self.now)  # type: ignore[arg-type, return-value]


TIMES = {"own": 2.0, "fast": 1.0, "faster": 0.5, "slow": 4.0}


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    found = Card(dict(TIMES))
    monkeypatch.setattr(measure, "find_where", lambda *arguments, **options: Where())
    return found


def swept(name: str = "causal", version: int = 1) -> Sweep:
    candidates = [Candidate(each, f"{name}_0", f"key {each} {name}", {"q": 64, "kv": 16}) for each in TIMES]
    return Sweep("mine", version, (Swept(name, f"shape of {name}", "sm_90a", "own", candidates),))


def run(card: Card, path: Path, which: Sweep | None = None, budget: float | None = None, **options: Any) -> bool:
    wanted = Options(rounds=3, **options)
    return Measuring(path.parent, which or swept(), Results(path), wanted, budget, bench=card.bench()).run()
