"""The command line: help, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from fagen import __version__
from fagen.build.progress import Plain
from fagen.cli import app
from fagen.cli.bar import Bar
from fagen.cli.output import errors_shown
from fagen.errors import (
    CheckError,
    CompileError,
    FagenError,
    LockError,
    PlanError,
    Problem,
    SpecError,
    ToolchainError,
    UsageError,
)
from fagen.size import ProblemSize, grid_size, parse_size
from fagen.spec import schema

ROOT = Path(__file__).resolve().parents[2]
RUN = CliRunner()
COMMANDS = ("build", "check", "bench", "tune", "list", "explain", "render", "schema", "doctor", "new")
SPEC = "fagen: 1\nname: tiny\ntarget: {target}\nvariants:\n  - {{name: a, head_dim: 8, dtype: f32, mask: causal}}\n"


def write_spec(folder: Path, target: str = "cpu") -> Path:
    path = folder / "tiny.yaml"
    path.write_text(SPEC.format(target=target))
    return path


def publish(folder: Path, *variants: str) -> Path:
    """A module, as far as its manifest goes."""
    folder.mkdir(parents=True)
    entries = [{"variant": {"name": name}} for name in variants]
    (folder / "manifest.json").write_text(json.dumps({"fagen": "0", "target": "cpu", "variants": entries}))
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str) -> None:
    result = RUN.invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert f"\n  fagen {command}" in result.stdout


def test_root_help_names_commands_and_exit_codes() -> None:
    text = RUN.invoke(app, ["--help"]).stdout
    for command in COMMANDS:
        assert f"\n  {command} " in text
    assert "fagen build my_model.yaml" in text
    codes = [FagenError, SpecError, PlanError, ToolchainError, CompileError, CheckError, LockError]
    for code in [error.exit_code for error in codes] + [130, 143]:
        assert f" {code} " in " ".join(text.split())


def test_version() -> None:
    assert RUN.invoke(app, ["--version"]).stdout == f"fagen {__version__}\n"


def test_help_is_fast_and_imports_neither_torch_nor_the_compiler() -> None:
    code = (
        "import sys; sys.argv = ['fagen', '--help']\n"
        "from fagen.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'sympy', 'jinja2', 'yaml', 'pydantic', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    assert time.monotonic() - started < 5


ERRORS = [SpecError, PlanError, ToolchainError, CompileError, CheckError, LockError]


@pytest.mark.parametrize("error", ERRORS)
def test_exit_codes_and_json(error: type[FagenError], capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem("it broke", "a.yaml", 3, 4, "mend it")
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as caught, errors_shown(as_json):
            raise error(problem)
        assert caught.value.exit_code == error.exit_code
        out, err = capsys.readouterr()
        assert err == "error: a.yaml:3:4: it broke\n  hint: mend it\n"
        if not as_json:
            assert out == ""
            continue
        value = json.loads(out)
        assert value["ok"] is False
        assert value["exit_code"] == error.exit_code
        assert value["problems"] == [
            {"message": "it broke", "path": "a.yaml", "line": 3, "column": 4, "hint": "mend it"}
        ]


def test_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as caught, errors_shown(False):
        raise KeyboardInterrupt
    assert caught.value.exit_code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_schema_is_the_specs() -> None:
    assert json.loads(RUN.invoke(app, ["schema"]).stdout) == schema()


def test_list_a_spec(tmp_path: Path) -> None:
    path = str(write_spec(tmp_path))
    assert RUN.invoke(app, ["list", path]).stdout.splitlines()[1].split() == [
        "a",
        "8",
        "f32",
        "bshd",
        "yes",
        "causal",
        "-",
    ]
    variants = json.loads(RUN.invoke(app, ["list", path, "--json"]).stdout)["variants"]
    assert [variant["name"] for variant in variants] == ["a"]


def test_list_everything(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["list", "--out", str(tmp_path), "--json"])
    value = json.loads(result.stdout)
    assert value["modules"] == []
    assert any(spec.endswith("cpu.yaml") for spec in value["specs"])


def test_list_ignores_what_is_no_module(tmp_path: Path) -> None:
    for name, text in {"a": "{", "b": "[]", "c": '{"name": "x"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(text)
    assert json.loads(RUN.invoke(app, ["list", "--out", str(tmp_path), "--json"]).stdout)["modules"] == []
    assert RUN.invoke(app, ["list", "a", "--out", str(tmp_path)]).exit_code == 2


@pytest.mark.parametrize("command", ["list", "check", "bench"])
def test_no_such_module(command: str, tmp_path: Path) -> None:
    result = RUN.invoke(app, [command, "nothing", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "no module nothing" in result.stderr
    assert "fagen build SPEC" in result.stderr
    assert "goes by its folder" in result.stderr


@pytest.mark.parametrize("command", ["check", "bench"])
def test_a_spec_where_its_module_is_wanted(command: str, tmp_path: Path) -> None:
    path = str(write_spec(tmp_path))
    result = RUN.invoke(app, [command, path, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {path}: is a spec; this wants the module that it makes\n  hint: `fagen build {path}` makes tiny\n"
    )
    publish(tmp_path / "out" / "tiny", "a")
    result = RUN.invoke(app, [command, path, "--out", str(tmp_path / "out")])
    assert result.stderr.endswith(f"hint: name tiny, with --out {tmp_path / 'out'}\n")
    assert "no such file" in RUN.invoke(app, [command, str(tmp_path / "other.yaml")]).stderr


def test_what_has_variants_where_one_of_them_is_wanted(tmp_path: Path) -> None:
    """`fagen explain` given a spec, or a module by its name or folder."""
    path = str(write_spec(tmp_path))
    result = RUN.invoke(app, ["explain", path])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error: {path}: is a spec; this wants one of its variants\n  hint: `fagen explain a --spec {path}`\n"
    )
    assert "no such file" in RUN.invoke(app, ["explain", str(tmp_path / "other.yaml")]).stderr
    folder = publish(tmp_path / "out" / "made", "b", "c")
    for name in ("made", str(folder)):
        result = RUN.invoke(app, ["explain", name, "--out", str(tmp_path / "out")])
        assert result.exit_code == 2
        assert result.stderr == (
            f"error: {name}: is a module; this wants one of its variants\n"
            f"  hint: `fagen explain b --out {folder}`; it has b, c\n"
        )


@pytest.mark.parametrize("command", ["build", "render"])
def test_a_module_where_its_spec_is_wanted(command: str, tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    result = RUN.invoke(app, [command, str(path.with_suffix(""))])
    assert result.exit_code == 2 and f"no such file\n  hint: there is {path}\n" in result.stderr
    folder = publish(tmp_path / "out" / "tiny", "a")
    result = RUN.invoke(app, [command, str(folder)])
    assert result.exit_code == 2 and "is a folder, not a spec file\n  hint: `fagen list` names" in result.stderr


@pytest.mark.parametrize("command", ["build", "list", "render"])
def test_wrong_spec(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("fagen: 1\nname: tiny\ntarget: cpu\nvariants:\n  - {name: a, head_dom: 8}\n")
    result = RUN.invoke(app, [command, "bad.yaml"])
    assert result.exit_code == 2
    assert "error: bad.yaml:5:15: unknown key" in result.stderr
    assert result.stdout == ""
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("command", ["build", "render"])
@pytest.mark.parametrize("target", ["sm_100a", "10.0a", "native"])
def test_targets_that_are_not_built_yet(command: str, target: str, tmp_path: Path) -> None:
    path = str(write_spec(tmp_path, target))
    result = RUN.invoke(app, [command, path, *(["--out", str(tmp_path / "out")] if command == "build" else [])])
    assert result.exit_code == 3
    assert "error: " in result.stderr
    assert ("native" if target == "native" else "sm_100a") in result.stderr
    assert "built so far: cpu" in result.stderr
    assert not (tmp_path / "out").exists()


def test_render_a_variant_that_is_not_there(tmp_path: Path) -> None:
    result = RUN.invoke(app, ["render", str(write_spec(tmp_path)), "-v", "b"])
    assert result.exit_code == 2
    assert "no variant b" in result.stderr
    assert "there are a" in result.stderr


@pytest.mark.parametrize("option", ["--out", "-o", "--to"])
def test_render_into_a_folder(option: str, tmp_path: Path) -> None:
    """--to is what --out was called at first."""
    result = RUN.invoke(app, ["render", str(write_spec(tmp_path)), option, str(tmp_path / "sources")])
    assert result.exit_code == 0, result.stderr
    assert {path.name for path in (tmp_path / "sources").iterdir()} == {"a_forward.cpp", "a_backward.cpp"}
    assert "--to" not in RUN.invoke(app, ["render", "--help"]).stdout


@pytest.mark.parametrize("options", [["--check", "maybe"], ["--jobs", "0"], ["--jobs", "x"], ["--frob"]])
def test_wrong_options(options: list[str], tmp_path: Path) -> None:
    assert RUN.invoke(app, ["build", str(write_spec(tmp_path)), *options]).exit_code == 2


def test_sizes() -> None:
    assert parse_size("B2,H8,Hk2,S64") == ProblemSize(2, 8, 2, 64, 64)
    assert parse_size("Sq1, Skv4096") == ProblemSize(1, 8, 8, 1, 4096)
    assert parse_size("H4") == ProblemSize(heads=4, kv_heads=4)
    for text in ("", "8", "B1,B2", "H8,Hk3", "H8,Hk0", "Q4", "S-1"):
        with pytest.raises(UsageError, match="--size"):
            parse_size(text)


def test_sizes_of_the_grid() -> None:
    """As many tokens at every length, and as wide a model at every head dim, or nearly."""
    assert grid_size(512, 64) == ProblemSize(32, 32, 32, 512, 512)
    assert grid_size(16384, 256) == ProblemSize(1, 8, 8, 16384, 16384)
    assert grid_size(8192, 192) == ProblemSize(2, 10, 10, 8192, 8192)
    assert grid_size(128, 4096, 256) == ProblemSize(2, 1, 1, 128, 128)
    for length, tokens in ((3000, 16384), (0, 16384), (32768, 16384), (64, 0)):
        with pytest.raises(UsageError, match="no whole number of sequences"):
            grid_size(length, 64, tokens)


def test_plain_progress(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a step, on stderr."""
    progress = Plain()
    progress.stage("compile", 2)
    progress.start("a forward")
    progress.finish("a forward", "1.5 s")
    progress.note("waiting")
    progress.close()
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "compile [1/2] a forward: 1.5 s\nwaiting\n"


def test_bar_names_what_is_compiling() -> None:
    """On a terminal: the steps that run now beside the bar, failures and notes as lines of their own."""
    stream = io.StringIO()
    bar = Bar(Console(file=stream, force_terminal=True, width=120))
    bar.note("waiting for another build of cpu")
    bar.stage("compile", 3)
    for step in ("a forward", "a backward"):
        bar.start(step)
    bar._progress.refresh()  # rather than at the next tenth of a second
    bar.finish("a forward", "1.5 s, 90 MiB")
    bar.finish("a backward", "failed")
    bar.close()
    text = stream.getvalue()
    assert "waiting for another build of cpu" in text
    assert "a forward, a backward" in text
    assert "a backward: failed" in text
    assert "2/3" in text
