"""How `fagen bench` imports what it measures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fagen.cli.benching import import_module


def test_a_module_named_as_another_package_takes_nobodys_place(tmp_path: Path) -> None:
    folder = tmp_path / "json"
    (folder / "runtime").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .runtime.kernel import WHAT\n")
    (folder / "runtime" / "__init__.py").touch()
    (folder / "runtime" / "kernel.py").write_text("WHAT = 'published'\n")
    module = import_module(folder)
    assert module.WHAT == "published"
    assert sys.modules["json"] is json and sys.modules[module.__name__] is module
