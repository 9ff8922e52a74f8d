"""One variant of each kind of card, built as its spec would and checked in the emulator; nightly, those of cards whose
instructions are sm_80's."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fagen.build import build
from fagen.build.check import check_folder
from fagen.cli import app
from fagen.runtime.check.report import PASSED, explain
from fagen.target import TARGETS

from .modules import needs_nvcc

# sm_80 is that of test_modules.py; cards with as much shared memory have the same plans.
VARIANTS = {
    # Its first row sees one key alone, which the check at times shuts out by a score of -inf.
    "sm_75": "{name: a, head_dim: 32, dtype: f16, mask: causal, align: top_left}",
    "sm_89": "{name: a, head_dim: 64, value_dim: 72, dtype: bf16, mask: causal and q - kv < 100}",
    "sm_90a": "{name: a, head_dim: 96, value_dim: 64, dtype: bf16, mask: causal and q - kv < 100, sink: true}",
    "sm_120": "{name: a, head_dim: 128, value_dim: 64, dtype: f16, layout: bhsd, mask: causal, score: softcap(20)}",
}
SECONDS = 15.0  # for nvcc, on one idle core
SLOWER = 8.0  # a machine may be busy


def test_every_size_of_card_is_there() -> None:
    built = [target for target in TARGETS.values() if target.device is not None and target.built]
    sizes = {target.device.shared_per_block for target in built if target.device is not None}
    named = {TARGETS[name].device for name in ("sm_80", *VARIANTS)}
    assert sizes == {device.shared_per_block for device in named if device is not None}


@pytest.mark.parametrize(
    "target",
    [pytest.param(name, marks=pytest.mark.nightly) if name in ("sm_89", "sm_120") else name for name in VARIANTS],
)
def test_a_variant(target: str, tmp_path: Path) -> None:
    needs_nvcc()
    spec = tmp_path / "card.yaml"
    spec.write_text(
        f"fagen: 1\nname: card\ntarget: {target}\ndefaults: {{backward: false}}\nvariants: [{VARIANTS[target]}]\n"
    )
    result = build(spec, out=tmp_path, check="off")
    assert result.report["units"]["a forward"]["seconds"] < SECONDS * SLOWER
    spilled = {name: taken for name, taken in result.report["resources"].items() if taken["spill_stores"]}
    assert not spilled, "no variant may spill"
    [report] = check_folder(result.folder, seed=1, on="emulator").variants
    assert report.verdict == PASSED, "\n".join(explain(report))


def test_tiles_that_spill_are_told_of(tmp_path: Path) -> None:
    """By the build, also of what is up to date, in its report and the manifest, and by `fagen explain`."""
    needs_nvcc()
    spec, out = tmp_path / "card.yaml", ["--out", str(tmp_path)]
    spec.write_text(
        "fagen: 1\nname: card\ntarget: sm_80\ndefaults: {backward: false}\n"
        "variants: [{name: a, head_dim: 128, dtype: bf16, tiles: {q: 128, kv: 256}}]\n"
    )
    warning = r"a: fagen_a_forward spills \d+ bytes of a thread's registers and reads \d+ back, which is slow; "
    warning += r"tiles smaller than \{q: 128, kv: 256\} take fewer registers"
    for state in (r"units? compiled", "is up to date"):
        shown = CliRunner().invoke(app, ["build", str(spec), "--check", "off", *out])
        assert shown.exit_code == 0 and re.search(state, shown.stdout), shown.output
        assert re.search(f"  warning: {warning}\n", shown.stdout)
    [told] = build(spec, out=tmp_path, check="off").report["warnings"]
    assert re.fullmatch(warning, told)
    [entry] = json.loads((tmp_path / "card" / "manifest.json").read_text())["variants"]
    assert entry["resources"]["fagen_a_forward"]["spill_stores"] > 0
    for words in (["--spec", str(spec), *out], out):
        shown = CliRunner().invoke(app, ["explain", "a", *words])
        assert f"  warning: {told}\n" in shown.stdout
    assert json.loads(CliRunner().invoke(app, ["explain", "a", *out, "--json"]).stdout)["warnings"] == [told]
