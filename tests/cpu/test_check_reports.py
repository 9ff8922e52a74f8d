"""What a build's check finds of honest kernels: all passed, every mutant killed, no line of a kernel left unrun."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fagen.build.check
from fagen.build import build, coverage
from fagen.build.check import check_folder
from fagen.build.coverage import Lines, count_lines
from fagen.build.progress import Silent
from fagen.errors import Problem, ToolchainError
from fagen.runtime.check.drive import Wish, check_variants
from fagen.runtime.check.report import PARTIAL, PASSED

SPECS = Path(__file__).resolve().parents[2] / "specs"
# A window, scores that are bent, a sink and another value_dim; gradients of params, and no mask; documents, transposed.
SAMPLE = """
fagen: 1
name: sample
target: cpu
params:
  slope: {dtype: f32, shape: [H], grad: true}
  bias: {dtype: f32, shape: [B, H, Sq, Skv], grad: true}
  doc: {dtype: i32, shape: [B, n]}
variants:
  - name: bent
    head_dim: 16
    value_dim: 24
    dtype: f32
    sink: true
    mask: causal and q - kv < 100
    score: s / 2 if q - kv > 2 else s
  - {name: biased, head_dim: 16, dtype: bf16, score: "s - slope[h] * abs(q - kv) + bias[b, h, i, j]"}
  - {name: packed, head_dim: 8, dtype: f16, layout: bhsd, mask: causal and document(doc)}
"""
TINY = """
fagen: 1
name: tiny
target: cpu
isa: portable
variants:
  - {name: tiny, head_dim: 8, dtype: f32, mask: causal, backward: false}
"""
# Rows that see one key, or at first one: a score of -inf there leaves them nothing.
NARROW = """
fagen: 1
name: narrow
target: cpu
params:
  bias: {dtype: f32, shape: [B, H, Sq, Skv], grad: true}
variants:
  - {name: own, head_dim: 16, dtype: f32, mask: q == kv}
  - {name: own_biased, head_dim: 16, dtype: bf16, mask: q == kv, score: "s + bias[b, h, i, j]"}
  - {name: own_sink, head_dim: 16, dtype: bf16, mask: q == kv, sink: true}
  - {name: early, head_dim: 16, dtype: bf16, mask: causal, align: top_left}
"""
# natten2d sees runs of seven keys, and no panel of keys is that short: its full_scores and full_slopes never run.
NEVER_WHOLE = {"natten2d"}
# Scores that are capped at 50 give no lse beyond 2^10: what normalizes weights where it is never runs.
NEVER_COARSE = {"gemma2_local", *(f"softcap_d{dim}{dtype}" for dim in (64, 128) for dtype in ("", "_bf16"))}


def published(spec: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Mapping[str, Any]]]:
    """A module built with as much time as its check takes, and the reports in its manifest."""
    monkeypatch.setattr(fagen.build.check, "BUDGET", 3600.0)
    folder = build(spec, out=out, force=True).folder
    manifest = json.loads((folder / "manifest.json").read_text())
    return folder, {entry["variant"]["name"]: entry["check"] for entry in manifest["variants"]}


def assert_all_told_apart(reports: Mapping[str, Mapping[str, Any]]) -> None:
    for name, report in reports.items():
        assert report["verdict"] == PASSED, report
        assert report["killed"] == report["mutants"] and not report["survivors"] and not report["skipped"], name


def test_a_sample_passes_with_every_mutant_killed_and_every_line_run(tmp_path, monkeypatch):
    (tmp_path / "sample.yaml").write_text(SAMPLE)
    folder, reports = published(tmp_path / "sample.yaml", tmp_path, monkeypatch)
    assert set(reports) == {"bent", "biased", "packed"}
    assert all(report["mutants"] > 0 for report in reports.values())
    assert_all_told_apart(reports)
    for name, lines in count_lines(folder, list(reports), seed=0, cache=None, progress=Silent()).items():
        assert not lines.note
        assert not lines.unrun, [str(line) for line in lines.unrun]
        sources = [(folder / "sources" / f"{name}_{d}.cpp").read_text() for d in ("forward", "backward")]
        assert 100 < lines.total < sum(text.count("\n") for text in sources)


def test_masks_that_let_one_key_pass(tmp_path, monkeypatch):
    (tmp_path / "narrow.yaml").write_text(NARROW)
    assert_all_told_apart(published(tmp_path / "narrow.yaml", tmp_path, monkeypatch)[1])


@pytest.mark.nightly
@pytest.mark.parametrize("spec", ["cpu", "zoo"])
def test_ready_specs_pass_with_every_mutant_killed_and_every_line_run(spec, tmp_path, monkeypatch):
    folder, reports = published(SPECS / f"{spec}.yaml", tmp_path, monkeypatch)
    assert_all_told_apart(reports)
    unrun = count_lines(folder, list(reports), seed=0, cache=None, progress=Silent())
    assert not [lines.note for lines in unrun.values() if lines.note]
    found = {name: [str(line) for line in lines.unrun] for name, lines in unrun.items() if lines.unrun}
    assert set(found) == (NEVER_WHOLE | NEVER_COARSE) & set(reports), found


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_a_line_that_never_runs_is_listed_and_makes_the_verdict_partial(compiler, tmp_path, monkeypatch):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    monkeypatch.setenv("CXX", compiler)
    (tmp_path / "tiny.yaml").write_text(TINY)
    folder = build(tmp_path / "tiny.yaml", out=tmp_path, check="off").folder
    source = folder / "sources" / "tiny_forward.cpp"
    text = source.read_text()
    before = "  for (int32_t r = 0; r < at.rows; ++r) {\n"
    assert before in text
    text = text.replace(before, "  if (at.rows < 0)\n    own.most[0] = vf{};\n" + before, 1)
    source.write_text(text)

    def one_case(folder: Path, names: list[str], wish: Wish, **options: Any) -> Any:
        return check_variants(folder, names, replace(wish, case="one-pair"), **options)

    # Of optimised kernels; counting ones run them all.
    monkeypatch.setattr(fagen.build.check, "check_variants", one_case)
    report = check_folder(folder, level="full", seed=0)
    (entry,) = report.variants
    assert not entry.notes
    (line,) = entry.unrun
    assert (line.file, line.text) == ("tiny_forward.cpp", "own.most[0] = vf{};")
    assert text.splitlines()[line.line - 1].strip() == line.text
    assert entry.verdict == report.verdict == PARTIAL


def test_without_gcov_a_full_check_says_that_lines_were_not_counted(tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(TINY)
    folder = build(tmp_path / "tiny.yaml", out=tmp_path, check="off").folder

    def missing(compiler: object) -> None:
        raise ToolchainError(Problem("no gcov"))

    monkeypatch.setattr(coverage, "find_gcov", missing)
    lines = count_lines(folder, ["tiny"], seed=0, cache=None, progress=Silent())
    assert lines == {"tiny": Lines(note="lines not counted: no gcov")}
