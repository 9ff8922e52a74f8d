"""Rendered kernels are what they were: a refactoring of templates or planner shows no diff, any other change its whole.

After a change that is meant, `FAGEN_UPDATE_SNAPSHOTS=1 pytest tests/golden` writes the files anew.
"""

from __future__ import annotations

import os

import pytest
from golden_plans import FOLDER, card_plans, golden_plans

from fagen.render import Source, render


def sources() -> list[Source]:
    return [source for planned in golden_plans() + card_plans() for source in render(planned)]


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_rendered_text(source: Source) -> None:
    path = FOLDER / source.name
    if os.environ.get("FAGEN_UPDATE_SNAPSHOTS"):
        path.write_text(source.text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == source.text


def test_no_file_is_left_over() -> None:
    assert {path.name for path in FOLDER.glob("*.c*")} == {source.name for source in sources()}
