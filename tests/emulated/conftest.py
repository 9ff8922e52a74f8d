"""Programs of one run of the tests, and of the next, are compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fagen.emulate import compile as programs

CACHE = Path(__file__).parents[2] / ".build" / "tests"


@pytest.fixture(scope="package", autouse=True)
def one_cache() -> Iterator[None]:
    """A folder that `make clean` removes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAGEN_CACHE_DIR", str(CACHE))
        yield


@pytest.fixture(scope="package", autouse=True)
def quickly_compiled() -> Iterator[None]:
    """Programs run a few times each: compiling them as well as for a check takes longer than it saves. Those of checks,
    which have processes of their own, are compiled as ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "_PROGRAM_FLAGS", (*programs._FLAGS, "-O0", "-w"))
        yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """The same inputs each time."""
    torch.manual_seed(0)
