"""A folder with a small spec, a cache that its tests share, and a fagen to edit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fagen_command import ROOT, SPEC


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that each test compiles only what it changes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a space and letters beyond ASCII in its path, holding the spec."""
    folder = tmp_path / "ein Ordner für α"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(SPEC)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of fagen to edit."""
    root = tmp_path / "source tree"
    for name in ("fagen", "templates", "specs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root
