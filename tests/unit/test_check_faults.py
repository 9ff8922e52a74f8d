"""The check finds every planted fault, and honest kernels pass with room to spare."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from planted import FAULTS, Planted, variant

from fagen.runtime.check.cases import Tiling, cases
from fagen.runtime.check.report import FAILED, PASSED
from fagen.runtime.check.run import run
from fagen.runtime.variant import Param

TILING = Tiling(((16, 16),))
SLOPE = Param("slope", "f32", ("H",), grad=True)
DOC = Param("doc", "i32", ("B", "n"))
BIAS = Param("bias", "f32", ("B", "H", "n"), grad=True)
REL = Param("rel", "f32", ("H", "n"), grad=True)
TABLE = Param("table", "bf16", ("B", "H", "Sq", "Skv"), grad=True)

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": "causal"},
    "window": {"mask": "window(5, 3)", "score": "softcap(3)", "value_dim": 24},
    "rich": {
        "mask": "causal and doc[b, q] == doc[b, kv]",
        "score": "softcap(4) + slope[h] * (kv - q) + bias[b, h, kv]",
        "params": (SLOPE, DOC, BIAS),
        "sink": True,
    },
    "distance": {"score": "s + rel[h, q - kv + kv_len]", "params": (REL,), "layout": "bhsd"},
    "dense": {"score": "s + table[b, h, i, j]", "params": (TABLE,), "align": "top_left"},
    "dropping": {"mask": "causal", "dropout": True},
    "capped": {"score": "softcap(20)"},  # in float16, the weights of the lowest scores are held as 0
}

# The variants besides "causal" that a fault needs to be one.
NEEDS = {
    **dict.fromkeys(["no-score", "no-score-last-tile", "no-score-gradient"], "window"),
    **dict.fromkeys(["sink-twice", "sink-scaled", "no-sink", "no-sink-gradient", "infinite-sink"], "rich"),
    **dict.fromkeys([fault for fault in FAULTS if fault.startswith("drops-")] + ["dv-unscaled"], "dropping"),
    **dict.fromkeys(["rows-of-one-batch", "param-gradient-one-head"], "rich"),
}
# Where a baseline in bfloat16 rounds as much itself, only sums that drift over many tiles show these.
SHOWN_BY_DRIFT = {"bf16-accumulation", "bf16-dq"}


def failed_case(kernel: Planted, seed: int = 0) -> str | None:
    """The first case in which the kernel fails, if any."""
    for case in sorted(cases(TILING), key=lambda case: case.name not in ("several-tiles", "many-tiles")):
        if run(kernel, TILING, seed=seed, case=case.name).verdict == FAILED:
            return case.name
    return None


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_an_honest_kernel_passes_and_its_mutants_do_not(name, dtype):
    report = run(Planted(variant(dtype=dtype, **VARIANTS[name])), replace(TILING, dropout=name == "dropping"), seed=0)
    assert report.verdict == PASSED, report.failures
    assert report.killed == report.mutants
    assert report.ratio < 0.7, report.worst


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, dtype):
    found = failed_case(Planted(variant(dtype=dtype, **VARIANTS[NEEDS.get(fault, "causal")]), fault))
    assert found
    if fault in SHOWN_BY_DRIFT and dtype == "bf16":
        assert found == "many-tiles"


@pytest.mark.parametrize("text", ["window(4, 0)", "window(6, 0)", "causal and q - kv < 5", "causal and q - kv <= 6"])
def test_a_kernel_of_a_slightly_other_mask_is_found(text):
    kernel = Planted(variant(mask=text))
    kernel.variant = variant(mask="window(5, 0)")
    right = Planted(variant(mask="window(5, 0)"))
    kernel.scores = Planted(variant(mask=text)).scores  # type: ignore[method-assign]
    assert failed_case(right) is None
    assert (failed_case(kernel) is None) == (text == "causal and q - kv <= 5")


@pytest.mark.parametrize("text", ["s", "50 * tanh(s / 49)", "s * tanh(s / 50)", "softcap(51)"])
def test_a_dropped_or_bent_softcap_of_50_is_found(text):
    for dtype in ("f32", "bf16"):
        kernel = Planted(variant(score="softcap(50)", dtype=dtype))
        kernel.scores = Planted(variant(score=text, dtype=dtype)).scores  # type: ignore[method-assign]
        assert failed_case(kernel)


def test_where_an_infinite_value_weighs_next_to_nothing_nan_is_as_good_and_nowhere_else():
    class Careless(Planted):
        def forward(self, *args: Any) -> Any:
            o, lse = super().forward(*args)
            return o.masked_fill(o.isinf() & self.most, torch.nan), lse

    kernel = Careless(variant(dtype="f16", backward=False, score="softcap(20)"))
    kernel.most = torch.tensor(False)
    right = run(kernel, TILING, seed=0, case="inf-row")
    assert right.verdict == PASSED, right.failures
    kernel.most = torch.tensor(True)
    (wrong,) = run(kernel, TILING, seed=0, case="inf-row").failures
    assert (wrong.output, wrong.measure) == ("o", "nan")
