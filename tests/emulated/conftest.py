"""Programs of one run of the tests, and of the next, are compiled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".build" / "tests"


@pytest.fixture(scope="package", autouse=True)
def one_cache() -> Iterator[None]:
    """A folder that `make clean` removes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAGEN_CACHE_DIR", str(CACHE))
        yield
