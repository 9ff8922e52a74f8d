"""What a command line, a spec's tiles or a full disk get wrong: one line that says so, and the right exit code."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fagen.build.link import link_library
from fagen.cli import app
from fagen.cli.output import errors_shown
from fagen.errors import CompileError
from fagen.toolchain import Compiler

RUN = CliRunner()
TILES = """\
fagen: 1
name: tiny
target: cpu
isa: avx2
variants:
  - {name: a, head_dim: 8, dtype: f32}
  - {name: b, head_dim: 8, dtype: f32, tiles: {kv: 1}}
"""


def test_what_a_target_cannot_do_has_a_place(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(TILES)
    result = RUN.invoke(app, ["build", str(path), "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 3
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["path"] == str(path)
    assert problem["line"] == 7


def test_a_case_that_is_not_there_is_the_command_lines_mistake(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    plan = {"forward": {"tile_q": 16, "tile_kv": 32}, "backward": None}
    entry = {"variant": {"name": "a"}, "plan": plan}
    (folder / "manifest.json").write_text(json.dumps({"fagen": "0", "variants": [entry]}))
    result = RUN.invoke(app, ["check", str(folder), "--case", "nonsense"])
    assert result.exit_code == 2, result.output
    assert "no case named 'nonsense'" in result.stderr


@pytest.mark.parametrize("as_json", [False, True])
def test_full_disk(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, errors_shown(as_json):
        raise OSError(errno.ENOSPC, "No space left on device", "out/x")
    assert caught.value.exit_code == 7
    out, err = capsys.readouterr()
    assert err.startswith("error: out/x: No space left on device\n  hint: make room")
    assert not as_json or json.loads(out)["exit_code"] == 7


def test_other_errors_of_the_system_are_not_hidden() -> None:
    with pytest.raises(OSError, match="odd"), errors_shown(False):
        raise OSError(errno.EIO, "odd")


def test_paths_that_are_not_utf8_reach_the_linker(tmp_path: Path) -> None:
    """Its answer is a compiler's error, as nothing is there to link; not one of Python's text."""
    odd = Path(str(tmp_path) + "/\udcff.o")
    with pytest.raises(CompileError):
        link_library(tmp_path / "library.so", [odd], (), _false(), tmp_path / "failed")


def _false() -> Compiler:
    return Compiler(("/bin/false",), "gcc", "12", "x86_64", "x")
