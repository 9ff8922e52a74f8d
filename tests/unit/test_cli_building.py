"""What `fagen build` shows: a line of what was made, and a bar on a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fagen.build import BuildResult
from fagen.build.progress import Plain
from fagen.cli import output
from fagen.cli.bar import Bar
from fagen.cli.building import _summary


def result(compiled: tuple[str, ...], cached: tuple[str, ...]) -> BuildResult:
    units = {label: {"seconds": 1.0, "peak_mb": 99.0, "cached": False} for label in compiled}
    units |= {label: {"seconds": 1.0, "peak_mb": 300.0, "cached": True} for label in cached}
    report: dict[str, Any] = {"units": units, "check": None, "skipped": []}
    return BuildResult(Path("generated/x"), compiled, cached, seconds=2.0, report=report)


def test_memory_is_that_of_the_compilers_that_ran() -> None:
    assert _summary(result(("a", "b"), ("c",))).splitlines()[0] == (
        "generated/x: 2 units compiled, 1 from the cache; 2.0 s, at most 99 MiB a compiler"
    )


def test_no_memory_is_named_where_nothing_was_compiled() -> None:
    line = _summary(result((), ("a", "b"))).splitlines()[0]
    assert line == "generated/x: 0 units compiled, 2 from the cache; 2.0 s"


def draw(width: int = 100) -> tuple[Bar, io.StringIO]:
    file = io.StringIO()
    return Bar(Console(file=file, force_terminal=True, width=width, color_system=None)), file


def shown(file: io.StringIO) -> list[str]:
    """The lines on the terminal at the end: a line drawn over is gone."""
    lines = [""]
    column = 0
    for text in re.findall(r"\x1b\[\??[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", file.getvalue()):
        if text == "\n":
            lines.append("")
            column = 0
        elif text == "\r":
            column = 0
        elif text == "\x1b[2K":
            lines[-1] = ""
        elif text == "\x1b[1A":
            lines.pop()
        elif text[0] != "\x1b":
            lines[-1] = lines[-1][:column].ljust(column) + text + lines[-1][column + len(text) :]
            column += len(text)
    return [line.rstrip() for line in lines]


def test_a_bar_counts_steps_and_names_those_that_run() -> None:
    bar, file = draw()
    bar.stage("compile", 6)
    for name in ("a [b]", "c", "d", "e"):
        bar.start(name)
    bar._progress.refresh()
    line = next(line for line in reversed(shown(file)) if "compile" in line)
    assert "0/6" in line and line.endswith("a [b], c, d …")
    bar.finish("a [b]", "1.0 s, 90 MiB")
    bar.finish("c", "1.0 s, 90 MiB")
    bar.close()
    line = next(line for line in reversed(shown(file)) if "compile" in line)
    assert "2/6" in line and line.endswith("d, e")


def test_failures_and_notes_stay_as_lines_above_the_bar() -> None:
    bar, file = draw()
    bar.stage("check", 2)
    bar.note("waiting for another build of [x]")
    bar.start("a")
    bar.finish("a", "failed")
    bar.start("b")
    bar.finish("b", "passed, 1 s")
    bar.close()
    lines = shown(file)
    assert lines.index("waiting for another build of [x]") < lines.index("a: failed")
    assert not any("passed, 1 s" in line for line in lines)
    assert sum("check" in line for line in lines) == 1


def test_a_second_stage_has_a_bar_of_its_own_below_the_first() -> None:
    bar, file = draw()
    bar.stage("compile", 1)
    bar.start("a")
    bar.finish("a", "1.0 s")
    bar.stage("check", 3)
    bar.finish("unheard of", "")
    bar.close()
    assert [re.search(r"(\w+) .*(\d/\d)", line).groups() for line in shown(file) if "/" in line] == [  # type: ignore[union-attr]
        ("compile", "1/1"),
        ("check", "1/3"),
    ]


def test_a_build_that_ends_before_its_first_stage() -> None:
    bar, file = draw()
    bar.finish("a", "")
    bar.close()
    assert file.getvalue().strip() == ""


@pytest.mark.parametrize(("terminal", "kind"), [(True, Bar), (False, Plain)])
def test_a_bar_is_for_terminals(terminal: bool, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    stream.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(output.sys, "stderr", stream)
    assert type(output.progress_for_terminal()) is kind
