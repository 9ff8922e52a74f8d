"""The PTX in kernels/ is what nvcc makes of the sources beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from .compiled import FOLDER, compiled, ptx_of

SOURCES = sorted(FOLDER.glob("*.cu"))


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("source", SOURCES, ids=[source.stem for source in SOURCES])
def test_ptx_is_what_nvcc_makes(source: Path) -> None:
    text, made = ptx_of(source.stem).read_text(), compiled(source)
    if text.split("\n")[0] != made.split("\n")[0]:
        pytest.skip("another nvcc, which writes another version of PTX")
    assert text == made
