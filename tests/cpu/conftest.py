"""A small module of plain-loop kernels, built once for all workers of a test run."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import naive  # beside this file
import pytest

from fagen.build import build

NAMESPACE = "fagen_small_00000001"


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Where the small module is published; copy it before changing anything."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "shared"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = root / "small"
        if not (folder / "manifest.json").exists():
            naive.publish(folder, namespace=NAMESPACE)
    return folder


@pytest.fixture(scope="session")
def small(small_folder: Path) -> Iterator[ModuleType]:
    """The small module, imported."""
    yield naive.load(small_folder)


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> ModuleType:
    """The module of specs/cases.yaml, built by fagen: its kernels come from the cache if nothing has changed."""
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "cases"
    root.mkdir(exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = build(Path(__file__).parent / "specs" / "cases.yaml", out=root, check="off")
    return naive.load(result.folder, "cases_module")
