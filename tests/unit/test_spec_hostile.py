"""Hostile specs end in an error that says what is wrong, within two seconds, having run and written nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_specs
import pytest

LIMIT = 2.0  # seconds
PATHS = os.pathsep.join([str(Path(hostile_specs.__file__).parent), str(Path(__file__).parents[2])])
SPECIAL = ("folder", "missing", "device", "fifo", "nul_in_path", "long_path")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("hostile")
    work = tmp_path_factory.mktemp("work")
    run = subprocess.run(
        [sys.executable, "-B", hostile_specs.__file__, str(folder)],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": PATHS},
    )
    assert run.returncode == 0, run.stderr
    assert list(work.iterdir()) == [], "a file was written"
    assert not (folder / "pwned").exists()
    return json.loads(run.stdout)


@pytest.mark.parametrize("name", [*hostile_specs.FILES, *SPECIAL])
def test_ends_in_an_error(report: dict[str, Any], name: str) -> None:
    case = report[name]
    assert case["error"] == "", "another exception than SpecError"
    assert case["told"].startswith("error: ")
    assert case["events"] == []
    assert case["seconds"] < LIMIT


@pytest.mark.parametrize("name", [*hostile_specs.FILES, *SPECIAL])
def test_is_told_in_few_printable_characters(report: dict[str, Any], name: str) -> None:
    told = report[name]["told"]
    assert len(told) < 20_000
    assert all(character.isprintable() or character == "\n" for character in told)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tag_system", "YAML tag `!!python/object/apply:os.system` is not allowed"),
        ("ten_megabytes", "larger than 512 KiB"),
        ("half_megabyte_of_dashes", "nested more than 32 deep"),
        ("alias_bomb", "more than 30,000 values"),
        ("alias_of_itself", "refers to a value that holds it"),
        ("matrix_of_a_million", "1,000,000 variants"),
        ("class_template", "{head_dim.__class__}"),
        ("dotdot_spec", "must be letters, digits and underscores"),
        ("newline_mask", "cannot hold a line break"),
        ("unbuilt_newline", "cannot hold a line break"),
        ("latin1", "not UTF-8"),
        ("many_bad_variants", "more problems"),
        ("folder", "is a folder"),
        ("fifo", "not a file"),
    ],
)
def test_says_what_is_wrong(report: dict[str, Any], name: str, words: str) -> None:
    assert words in report[name]["told"]


HARMFUL_LOADER = """
import os, pathlib, sys
import fagen.spec, hostile_specs
loads = []
def load(path):
    loads.append(path)
    if len(loads) == 3:  # after the two that warm up
        os.system("true")
        open("made", "w").close()
        exec("1")
fagen.spec.load = load
hostile_specs.FILES = {"one": ""}
print(hostile_specs.watch(pathlib.Path(sys.argv[1]))["one"]["events"])
"""


def test_the_watch_sees_harm(tmp_path: Path) -> None:
    """The hook that vouches for the cases above does notice a command, a write and an exec."""
    run = subprocess.run(
        [sys.executable, "-c", HARMFUL_LOADER, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": PATHS},
    )
    assert run.returncode == 0, run.stderr
    for event in ("os.system", "open", "exec"):
        assert event in run.stdout
