"""What each kind of mistake in a spec is told, pinned: snapshots/spec/NAME.yaml must give just NAME.txt.

After a change that is meant, `FAGEN_UPDATE_SNAPSHOTS=1 pytest tests/unit/test_spec_errors.py` writes them anew.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from fagen.errors import SpecError
from fagen.spec import load_text

FOLDER = Path(__file__).parent / "snapshots" / "spec"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def told(name: str) -> str:
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_text(text, f"{name}.yaml")
    return f"{caught.value}\n"


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML without libyaml words syntax errors otherwise")
@pytest.mark.parametrize("name", NAMES)
def test_snapshot(name: str) -> None:
    snapshot = FOLDER / f"{name}.txt"
    if os.environ.get("FAGEN_UPDATE_SNAPSHOTS"):
        snapshot.write_text(told(name), encoding="utf-8")
    assert told(name) == snapshot.read_text(encoding="utf-8")


def test_every_snapshot_has_its_spec() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_problem_has_a_place_that_exists(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").split("\n")
    with pytest.raises(SpecError) as caught:
        load_text("\n".join(lines), name)
    problems = caught.value.problems
    assert problems
    for problem in problems:
        if problem.message.startswith("and "):
            continue
        assert problem.line is not None
        assert problem.column is not None
        assert 1 <= problem.line <= len(lines)
        assert 1 <= problem.column <= len(lines[problem.line - 1]) + 1


def test_all_mistakes_come_at_once_in_the_order_of_the_file() -> None:
    with pytest.raises(SpecError) as caught:
        load_text((FOLDER / "wrong_values.yaml").read_text(), "wrong_values.yaml")
    places = [(problem.line or 0, problem.column or 0) for problem in caught.value.problems]
    assert places == sorted(places)
    assert len(places) > 25
