"""How `fagen bench` imports what it measures, and what it says of ratios that are asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from fagen.bench import __main__ as alone
from fagen.bench import command, machines
from fagen.bench.command import import_module
from fagen.bench.report import BenchReport, Cell
from fagen.bench.tables import generations, host_times, rates, summary, tables
from fagen.cli import app, benching
from fagen.errors import UsageError
from fagen.runtime.cards import Card

ROOT = Path(__file__).parents[2]


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
        return Cell("x", "f32", direction, 1, 8, 8, length, length, 64, 64, 1e9, seconds, seconds, seconds)

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
    monkeypatch.setattr(command, "import_module", lambda folder: SimpleNamespace(_module=None))
    monkeypatch.setattr(command, "bench", lambda *arguments, **options: _report())
    missed = CliRunner().invoke(app, ["bench", "cpu", "--json", "--at-least", "cell=0.95"])
    assert missed.exit_code == 1 and "error: x backward" in missed.stderr
    assert len(json.loads(missed.stdout)["short_of"]) == 1
    reached = CliRunner().invoke(app, ["bench", "cpu", "--json", "--at-least", "cell=0.9"])
    assert reached.exit_code == 0 and json.loads(reached.stdout)["short_of"] == []
    failed = replace(_report(), failed=("x: the card is lost",))
    monkeypatch.setattr(command, "bench", lambda *arguments, **options: failed)
    lost = CliRunner().invoke(app, ["bench", "cpu", "--json"])
    assert lost.exit_code == 1 and "error: x: the card is lost" in lost.stderr
    assert json.loads(lost.stdout)["short_of"] == ["x: the card is lost"] and json.loads(lost.stdout)["cells"]


MISTYPED = ["forward", "forward=", "forward=fast", "forward=nan", "sideways=2", "=1", "cell/=1", "cell/nobody=1"]


@pytest.mark.parametrize("text", MISTYPED)
def test_a_mistyped_ratio_is_refused_before_anything_is_measured(text: str) -> None:
    result = CliRunner().invoke(app, ["bench", "cpu", "--at-least", text])
    assert result.exit_code == 2 and "forward=1.5" in result.output


def test_on_a_card_ratios_are_to_flash() -> None:
    """cuDNN's, though worse, decide nothing."""
    seconds = {"fagen": 1.0, "flash": 1.2, "cudnn": 0.5}
    cell = Cell("x", "bf16", "forward", 32, 32, 32, 512, 512, 64, 64, 2e14, seconds, seconds, seconds)
    report = BenchReport("a card", "2.11.0", None, "sm_80", {"bf16": 8e14}, (cell,), device="cuda")
    assert report.against == "flash" and report.to_json()["against"] == "flash"
    assert report.short_of({"forward": 1.0, "cell": 0.9}) == []
    assert report.short_of({"cell": 1.3}) == ["x forward 512×512: 1.200× flash, asked for 1.3×"]
    head, row, _ = rates(report)
    assert head[3:5] == ["TFLOP/s", "of peak"] and row[3:7] == ["200.0", "25 %", "0 %", "166.7"]
    assert summary(report, {"forward": 1.0, "cell": 0.9}) == [
        "forward: 1.20× flash (geometric mean)",
        "forward: 0.50× cudnn (geometric mean)",
        "forward: 0.50× the faster of flash and cudnn, at least (x B32,H32,S512)",
        "asked for: forward at least 1× flash, cell at least 0.9× flash",
        "on a card, torch 2.11.0",
        "peak, of torch's product of two large matrices: bf16 800 TFLOP/s",
    ]


def _cell(what: str, seconds: dict[str, float], **fields: object) -> Cell:
    """Of 1e12 operations."""
    size = (1, 16, 16, 128, 128, 64, 64)
    return replace(Cell("x", "bf16", "forward", *size, 1e12, seconds, seconds, seconds, how=what), **fields)


def test_ratios_to_others_than_flash() -> None:
    """Cell by cell the faster of torch's own, or in the mean one that is named."""

    def cell(length: int, flash: float, cudnn: float) -> Cell:
        seconds = {"fagen": 1.0, "flash": flash, "cudnn": cudnn}
        return Cell("x", "bf16", "backward", 1, 8, 8, length, length, 64, 64, 1e12, seconds, seconds, seconds)

    report = BenchReport("a card", "2.11.0", None, "sm_90a", {}, (cell(512, 2.0, 1.0), cell(1024, 1.2, 4.0)), "cuda")
    assert not report.short_of({"cell/fastest": 1.0, "backward/cudnn": 2.0, "backward/fastest": 1.09})
    assert report.short_of({"cell/fastest": 1.1, "backward/cudnn": 2.1, "cell/flex": 1.5}) == [
        "x backward 512×512: 1.000× fastest, asked for 1.1×",
        "backward, in geometric mean: 2.000× cudnn, asked for 2.1×",
        "cell: no cell has flex",
    ]
    assert "asked for: cell at least 1× fastest" in summary(report, {"cell/fastest": 1.0})


def test_a_ratio_that_is_no_number_is_not_reached() -> None:
    seconds = {"fagen": 1.0, "flash": float("nan")}
    cell = Cell("x", "bf16", "forward", 1, 8, 8, 16, 16, 64, 64, 1e12, seconds, seconds, seconds)
    report = BenchReport("a card", "2.11.0", None, "sm_90a", {}, (cell,), "cuda")
    assert len(report.short_of({"cell": 1.0, "forward": 1.0})) == 2


def test_the_hosts_time_is_no_rate() -> None:
    """It has a table of its own, in microseconds, and means of its own."""
    seconds = {"fagen": 8e-6, "attention": 12e-6, "flash": 10e-6}
    cells = (_cell("graph", {"fagen": 1.0, "flash": 3.0}), _cell("host", seconds))
    report = BenchReport("a card", "2.11.0", None, "sm_90a", {}, cells, device="cuda")
    graph, host = tables(report)
    assert [row[1] for row in graph[1:]] == ["forward graph"] * 2
    assert host[0] == ["variant", "pass", "B H/Hk Sq×Skv", "µs", "±", "flash", "ratio", "attention", "ratio"]
    assert host[1][2:] == ["1 16 128×128", "8.0", "0 %", "10.0", "1.25×", "12.0", "1.50×"]
    assert host[2][:2] == ["geometric mean", "forward host"] and host == host_times(report)
    assert summary(report)[:3] == [
        "forward graph: 3.00× flash (geometric mean)",
        "forward host: 1.25× flash (geometric mean)",
        "forward host: 1.50× attention (geometric mean)",
    ]
    times = report.measurements()
    assert times[2] == {
        "case": "x B1,H16,S128 host", "dir": "forward", "peer": "fagen", "ms": 8e-3, "p20": 8e-3, "p80": 8e-3,
        "tflops": None,
    }  # fmt: skip
    assert times[0]["case"] == "x B1,H16,S128 graph" and times[0]["tflops"] == 1.0
    assert report.short_of({"forward": 1.3}) == ["forward host, in geometric mean: 1.250× flash, asked for 1.3×"]


def test_a_rate_beside_that_of_an_aligned_shape() -> None:
    aligned, odd = _cell("", {"fagen": 1.0}), _cell("", {"fagen": 1.25}, aligned="x B1,H16,S128", variant="odd")
    head, first, second = rates(BenchReport("a card", "2.11.0", None, "sm_90a", {}, (aligned, odd), device="cuda"))
    assert head[-1] == "aligned" and first[-1] == "–" and second[-1] == "0.80×"


def test_generations_stand_side_by_side() -> None:
    """Each beside the one before it, or where a cell lacks that, the one before."""
    cells = (_cell("", {"unfused": 8.0, "mma": 2.0, "wgmma": 1.0}), _cell("", {"mma": 2.0, "wgmma": 0.5}))
    names = ("unfused", "mma", "wgmma")
    report = BenchReport("a card", "2.11.0", None, "sm_90a", {}, cells, device="cuda", schedules=names)
    head, first, second = generations(report)
    assert [head, first, second] in list(tables(report))
    assert head[3:] == ["unfused TFLOP/s", "mma", "ratio", "wgmma", "ratio"]
    assert first[3:] == ["0.1", "0.5", "4.00×", "1.0", "2.00×"] and second[3:] == ["–", "0.5", "–", "2.0", "4.00×"]
    assert [each["peer"] for each in report.measurements()] == ["unfused", "mma", "wgmma", "mma", "wgmma"]
    assert summary(report) == ["on a card, torch 2.11.0"] and report.to_json()["geometric_mean"] == {}


def _published(folder: Path) -> Path:
    folder.mkdir()
    manifest = {"fagen": "0", "target": "sm_80", "device": "cuda", "variants": []}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def test_a_module_for_cards_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything of it is loaded, by both commands alike."""
    monkeypatch.setattr(machines, "cards", lambda: ())
    folder = _published(tmp_path / "a")
    result = CliRunner().invoke(app, ["bench", "a", "--out", str(tmp_path), "--json"])
    assert result.exit_code == 2
    assert "error: a is built for sm_80, and no card here runs it: there is none at all\n  hint: " in result.stderr
    assert json.loads(result.stdout)["exit_code"] == 2
    assert alone.main([str(folder)]) == 2


def test_which_card(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own kind before a newer one; an older one runs nothing."""
    there = [Card(0, "NVIDIA H200", "sm_90"), Card(1, "NVIDIA A100", "sm_80"), Card(2, "Tesla T4", "sm_75")]
    monkeypatch.setattr(machines, "cards", lambda: tuple(there))
    monkeypatch.setattr(machines.torch.cuda, "is_available", lambda: True)
    assert machines.find_card("a100", "sm_80").index == 1
    assert machines.find_card("a10", "sm_86").index == 0
    with pytest.raises(UsageError, match=r"no card here runs it: there are NVIDIA H200 \(sm_90\), NVIDIA A100"):
        machines.find_card("rtx5090", "sm_120")
    monkeypatch.setattr(machines.torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match="this torch cannot use it"):
        machines.find_card("a100", "sm_80")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--length", "3000"], "16384 tokens are no whole number of sequences of 3000"),
        (["--tokens", "0"], "--tokens"),
        (["--rounds", "1"], "--rounds"),
        (["--size", "S"], "'S' is no size"),
        (["--at-least", "cell"], "--at-least"),
        (["-v", "nothing"], "no variant nothing"),
        (["--sustained", "0"], "--sustained: expected seconds, got 0.0"),
        (["--host", "--graph"], "--host is measured alone"),
        (["--forward-only", "--backward-only"], "leave nothing"),
        (["--backward-only", "--graph"], "--backward-only: graphs, the host's time and schedules are of the forward"),
        (["--grid", "third"], "there are standard, sustained, second, custom, short, host"),
        (["--grid", "second", "--tokens", "512"], "--grid has sizes of its own"),
        (["--schedules", "nowhere"], "nowhere is no published module"),
    ],
)
def test_mistakes_without_typer(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _published(tmp_path / "a")
    module = SimpleNamespace(
        variants=lambda: [SimpleNamespace(name="x", head_dim=64, backward=False, deterministic=False)]
    )
    monkeypatch.setattr(command, "import_module", lambda folder: SimpleNamespace(_module=module))
    monkeypatch.setattr(command, "find_card", lambda name, target: None)
    monkeypatch.setattr("fagen.bench.run.machine_for", lambda module: None)
    assert alone.main([str(folder), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_folder_that_is_no_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert alone.main([str(tmp_path)]) == 2
    assert f"{tmp_path} is no published module" in capsys.readouterr().err


def test_both_commands_take_the_same_options() -> None:
    """But for where modules are: one takes a folder, the other a name as well."""
    import typer

    bench = typer.main.get_command(app).commands["bench"]  # type: ignore[attr-defined]
    ours = {flag for option in bench.params for flag in option.opts if flag.startswith("-")} - {"--out", "-o"}
    text = subprocess.run(
        [sys.executable, "-m", "fagen.bench", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert {flag for flag in ours if flag not in text} == set()


def test_measuring_needs_torch_alone() -> None:
    """Not what a build needs, nor what the command line is made of."""
    absent = ("pydantic", "typer", "click", "rich", "jinja2", "yaml", "ninja", "matplotlib")
    program = f"import sys\nfor name in {absent!r}: sys.modules[name] = None\nimport fagen.bench.__main__"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
