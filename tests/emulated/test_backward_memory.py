"""What backward of modules for cards holds, as their own host code allocates it: one float32 dQ, and notes on its rows.

Also that backward tiles that tuning may choose give the right numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fagen.bench.memory import CpuMeter, training_memory
from fagen.build.check import check_folder
from fagen.costs import ProblemSize
from fagen.emulate import driver
from fagen.runtime.check.report import FAILED

from .modules import built

SPECS = {"mma": "sm_80", "wgmma": "sm_90a"}
SPEC = """
fagen: 1
name: held_{schedule}
target: {target}
defaults: {{dtype: bf16, head_dim: 64}}
variants:
  - {{name: causal, mask: causal, head_dim: 128}}
"""
TILES = {"mma": "{q: 128, kv: 64, stages: 2}", "wgmma": "{q: 80}"}


@pytest.fixture(scope="module", params=SPECS)
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    text = SPEC.format(schedule=request.param, target=SPECS[request.param])
    text += f"  - {{name: tiled, mask: causal, backward_tiles: {TILES[request.param]}}}\n"
    yield from built(text, tmp_path_factory.mktemp(f"held_{request.param}"))


@pytest.mark.parametrize("name", ["causal", "tiled"])
def test_backward_holds_a_float32_dq_and_notes(held: ModuleType, name: str) -> None:
    module = held._module
    variant = module.variant(name)
    backward = next(each for each in module.manifest["variants"] if each["variant"]["name"] == name)["plan"]["backward"]
    size = ProblemSize(1, 1, 1, 2 * backward["tile_q"], 128)
    with driver.use(held):
        report = training_memory(
            module, [(variant, size)], CpuMeter(), "cpu", "emulated", seed=0, tell=print, survives=lambda: True
        )
    (step,) = report.steps
    # Of each row 16 bytes of notes at most; then counters, and what is known of a mask's tiles.
    assert 1 <= step.beyond <= 1 + 16 / (4 * variant.head_dim) + 256 / step.dq


def test_other_backward_tiles_are_right(held: ModuleType) -> None:
    folder = Path(held.__file__ or "").parent
    (report,) = check_folder(folder, names=["tiled"], case="several-tiles", seed=0, on="emulator").variants
    assert report.verdict != FAILED, report.failures
