"""`fagen tune` from a spec to a build that takes what it found, with real kernels on this CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fagen.cli import app

SPEC = """fagen: 1
name: tuned
target: cpu
defaults: {dtype: f32, backward: false}
params:
  slope: {dtype: f32, shape: [H]}
variants:
  - {name: near, head_dim: 8, mask: causal and q - kv < 20, score: alibi(slope)}
"""


def test_the_next_build_takes_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tuned.yaml").write_text(SPEC)
    words = ["tune", "tuned.yaml", "--most", "2", "--size", "B1,H2,S64", "--rounds", "3", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    (entry,) = json.loads(result.stdout)["entries"]
    assert entry["tried"] == 2 and entry["milliseconds"].keys() == {"B1,H2,S64"} and entry["gain"] >= 1
    records = [json.loads(line) for line in Path("generated/.fagen/tune/tuned/results.jsonl").read_text().splitlines()]
    assert [each["kind"] for each in records] == ["check", "check", "time", "check"]
    assert records[-1]["complete"] and records[-1]["verdict"] == "passed"
    # Told of other tiles, the same build is not up to date.
    file = Path("tuned.tuning.yml")
    for tiles, rows in (("{q: 24, kv: 128}", 24), ("{q: 12, kv: 64}", 12)):
        lines = [line if "tiles: " not in line else f"    tiles: {tiles}" for line in file.read_text().splitlines()]
        file.write_text("\n".join(lines) + "\n")
        assert CliRunner().invoke(app, ["build", "tuned.yaml", "--check", "off"]).exit_code == 0
        manifest = json.loads(Path("generated/tuned/manifest.json").read_text())
        assert manifest["variants"][0]["plan"]["forward"]["tile_q"] == rows
    explained = CliRunner().invoke(app, ["explain", "near"]).stdout
    assert f"tuned.tuning.yml: the fastest of 2 candidates, {tiles}" in explained
    file.write_text("version: [")
    built = CliRunner().invoke(app, ["build", "tuned.yaml", "--check", "off"])
    assert built.exit_code == 0 and "warning: tuned.tuning.yml:1:11: left aside: not valid YAML" in built.stdout
