"""How `fagen bench` imports what it measures, and what it says of ratios that are asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fagen.bench.report import BenchReport, Cell
from fagen.cli import app, benching
from fagen.cli.benching import import_module


def test_a_module_named_as_another_package_takes_nobodys_place(tmp_path: Path) -> None:
    folder = tmp_path / "json"
    (folder / "runtime").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .runtime.kernel import WHAT\n")
    (folder / "runtime" / "__init__.py").touch()
    (folder / "runtime" / "kernel.py").write_text("WHAT = 'published'\n")
    module = import_module(folder)
    assert module.WHAT == "published"
    assert sys.modules["json"] is json and sys.modules[module.__name__] is module


def _report() -> BenchReport:
    def cell(direction: str, length: int, ratio: float) -> Cell:
        seconds = {"fagen": 1.0, "sdpa": ratio}
        return Cell("x", "f32", direction, 1, 8, 8, length, length, 64, 64, 1e9, seconds, dict.fromkeys(seconds, 0.0))

    cells = (cell("forward", 1024, 1.0), cell("forward", 4096, 4.0), cell("backward", 1024, 0.9))
    return BenchReport("a machine", "2.13.0", 1, "portable", {}, cells)


def test_ratios_that_are_not_reached_are_named() -> None:
    report = _report()
    assert not report.short_of({})
    assert not report.short_of({"forward": 2.0, "backward": 0.9, "cell": 0.9})
    (mean,) = report.short_of({"forward": 2.1})
    assert mean == "forward, in geometric mean: 2.000× sdpa, asked for 2.1×"
    (slow,) = report.short_of({"cell": 0.95})
    assert slow.startswith("x backward 1024×1024: 0.900×")


def test_a_ratio_that_was_not_measured_is_not_taken_for_reached() -> None:
    forward = BenchReport("a machine", "2.13.0", 1, "portable", {}, _report().cells[:2])
    assert forward.short_of({"backward": 1.2}) == ["backward: no cell has sdpa"]
    assert BenchReport("a machine", "2.13.0", 1, "portable", {}, ()).short_of({"cell": 0.5}) == [
        "cell: no cell has sdpa"
    ]


def test_a_ratio_that_is_not_reached_is_an_exit_status_and_one_json_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benching, "find_module", lambda what, out: tmp_path)
    monkeypatch.setattr(benching, "read_module", lambda folder: {"variants": []})
    monkeypatch.setattr(benching, "import_module", lambda folder: SimpleNamespace(_module=None))
    monkeypatch.setattr(benching, "bench", lambda *arguments: _report())
    missed = CliRunner().invoke(app, ["bench", "cpu", "--json", "--at-least", "cell=0.95"])
    assert missed.exit_code == 1 and "error: x backward" in missed.stderr
    assert len(json.loads(missed.stdout)["short_of"]) == 1
    reached = CliRunner().invoke(app, ["bench", "cpu", "--json", "--at-least", "cell=0.9"])
    assert reached.exit_code == 0 and json.loads(reached.stdout)["short_of"] == []


@pytest.mark.parametrize("text", ["forward", "forward=", "forward=fast", "forward=nan", "sideways=2", "=1"])
def test_a_mistyped_ratio_is_refused_before_anything_is_measured(text: str) -> None:
    result = CliRunner().invoke(app, ["bench", "cpu", "--at-least", text])
    assert result.exit_code == 2 and "forward=1.5" in result.output


def test_modules_for_cards_are_not_measured_yet(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    manifest = {"fagen": "0", "target": "sm_80", "device": "cuda", "variants": []}
    (tmp_path / "a" / "manifest.json").write_text(json.dumps(manifest))
    result = CliRunner().invoke(app, ["bench", "a", "--out", str(tmp_path)])
    assert result.exit_code == 2 and "a is built for sm_80; only modules for the CPU are measured yet" in result.output
