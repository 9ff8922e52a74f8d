"""What backward of modules for cards holds, as their own host code allocates it: one float32 dQ, and notes on its rows.

Also who clears that, and that backward tiles that tuning may choose give the right numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

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
  - {{name: causal, mask: causal, head_dim: 128, deterministic: true}}
"""
TILES = {"mma": "{q: 128, kv: 64, stages: 2}", "wgmma": "{q: 80}"}


@pytest.fixture(scope="module", params=SPECS)
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    text = SPEC.format(schedule=request.param, target=SPECS[request.param])
    text += f"  - {{name: tiled, mask: causal, backward_tiles: {TILES[request.param]}}}\n"
    yield from built(text, tmp_path_factory.mktemp(f"held_{request.param}"))


def plan_of(held: ModuleType, name: str) -> Any:
    """The sizes of a variant's backward kernels."""
    entries = held._module.manifest["variants"]
    return next(each for each in entries if each["variant"]["name"] == name)["plan"]["backward"]


@pytest.mark.parametrize("name", ["causal", "tiled"])
def test_backward_holds_a_float32_dq_and_notes(held: ModuleType, name: str) -> None:
    module = held._module
    variant = module.variant(name)
    backward = plan_of(held, name)
    size = ProblemSize(1, 1, 1, 2 * backward["tile_q"], 128)
    with driver.use(held):
        report = training_memory(
            module, [(variant, size)], CpuMeter(), "cpu", "emulated", seed=0, tell=print, survives=lambda: True
        )
    (step,) = report.steps
    # Of each row 16 bytes of notes at most; then counters, and what is known of a mask's tiles.
    assert 1 <= step.beyond <= 1 + 16 / (4 * variant.head_dim) + 256 / step.dq


@pytest.mark.parametrize("name", ["causal", "tiled"])
def test_the_first_kernel_clears_what_others_add_to(
    held: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of lengths that are no whole tiles, and of memory that holds NaN. No fill is launched for that."""
    cleared: dict[str, int] = {}
    run = driver.run

    def watched(program: Any, entry: Any, *launch: Any, **how: Any) -> Any:
        first = entry.name.endswith("_backward_prepare")
        added = [each for each in launch[-1] if first and each.name in ("sums of dq", "turns")]
        for each in added:
            ctypes.memset(each.address, 0xFF, each.bytes)
        statistics = run(program, entry, *launch, **how)
        for each in added:
            assert not any(ctypes.string_at(each.address, each.bytes)), each.name
            cleared[each.name] = each.bytes
        return statistics

    monkeypatch.setattr(driver, "run", watched)
    kernel = getattr(held, name)
    backward = plan_of(held, name)
    dim, tile_q = kernel.variant.head_dim, backward["tile_q"]
    q_len, kv_len = 2 * tile_q + 5, backward["tile_kv"] + 3
    q, d_o = torch.randn(2, 2, q_len, 2, dim).bfloat16()
    k, v = torch.randn(2, 2, kv_len, 1, dim).bfloat16()
    rest = (torch.zeros_like(q), torch.zeros(2, 2, q_len))
    with driver.use(held), torch.profiler.profile() as profile:
        kernel.ops.backward(d_o, None, q, k, v, *rest, dim**-0.5, 0)
    assert not {each.name for each in profile.events()} & {"aten::zero_", "aten::fill_"}
    counters = 1 + 3 * 2 * 2  # of two blocks of keys in each of two sequences
    has = kernel.variant.deterministic or backward.get("mends", False)
    assert cleared == {"sums of dq": 2 * 2 * 3 * tile_q * 4 * dim, **({"turns": 4 * counters} if has else {})}


def test_other_backward_tiles_are_right(held: ModuleType) -> None:
    folder = Path(held.__file__ or "").parent
    (report,) = check_folder(folder, names=["tiled"], case="several-tiles", seed=0, on="emulator").variants
    assert report.verdict != FAILED, report.failures
