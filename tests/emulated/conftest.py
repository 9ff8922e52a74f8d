"""Programs of one run of the tests, and of the next, are compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

CACHE = Path(__file__).parents[2] / ".build" / "tests"


@pytest.fixture(scope="package", autouse=True)
def one_cache() -> Iterator[None]:
    """A folder that `make clean` removes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAGEN_CACHE_DIR", str(CACHE))
        yield


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """The same inputs each time."""
    torch.manual_seed(0)
