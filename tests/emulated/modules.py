"""Modules for cards that tests build, and import from where they are."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from fagen.build import build
from fagen.errors import ToolchainError
from fagen.toolchain import find_nvcc


def needs_nvcc() -> None:
    """Skips where there is none."""
    try:
        find_nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))


def load(folder: Path, name: str) -> ModuleType:
    """The module published in ``folder``, imported as ``name``."""
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def built(spec: str, folder: Path) -> Iterator[ModuleType]:
    """The module of a spec, built in ``folder`` and not checked, for as long as a fixture has it."""
    needs_nvcc()
    name = str(yaml.safe_load(spec)["name"])
    (folder / "spec.yaml").write_text(spec)
    yield load(build(folder / "spec.yaml", out=folder, check="off").folder, name)
    del sys.modules[name]
