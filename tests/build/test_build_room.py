"""Disks that fill while a build writes to them: exit code 7, which disk, and nothing lost."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_job import assert_whole, build_small, small_job

from fagen.errors import LockError

SPEC = """\
fagen: 1
name: tiny
target: cpu
isa: portable
defaults: {dtype: f32, backward: false}
variants:
  - {name: full, head_dim: 8}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Makes folders that are file systems of so many KiB."""
    mounted: list[Path] = []

    def make(name: str, kib: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "fagen-test", folder], check=False, capture_output=True
        )
        if done.returncode != 0:
            pytest.skip("mounting is not allowed here")
        mounted.append(folder)
        return folder

    yield make
    for folder in mounted:  # lazily: a library loaded from it stays open
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """Leave no room at all; returns the file to delete."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return path


def assert_says(error: LockError, *words: str) -> None:
    assert error.exit_code == 7
    text = str(error)
    for word in ("No space left on device", "make room", "MiB in", *words):
        assert word in text, text


def test_a_cache_that_fills(disk: Callable[[str, int], Path], tmp_path: Path) -> None:
    """Says so; the last module stays, what was compiled before is kept, and no part of an object."""
    out, cache = tmp_path / "out", disk("cache", 64)
    build_small(out, cache, small_job(1))
    filler = fill(cache)
    with pytest.raises(LockError) as raised:
        build_small(out, cache, small_job(2))
    assert_says(raised.value, "0.0 MiB in", str(cache), "FAGEN_CACHE_DIR")
    assert assert_whole(out / "small") == 1
    assert not list(cache.rglob(".tmp-*"))
    assert list((out / ".fagen" / "staging").iterdir()) == []
    filler.unlink()
    outcome = build_small(out, cache, small_job(2))
    assert set(outcome.compiled.made) == {"value"}
    assert assert_whole(out / "small") == 2


@pytest.mark.parametrize("kib", [4, 16, 28, 40, 64, 76])
def test_an_output_disk_that_fills(kib: int, disk: Callable[[str, int], Path], tmp_path: Path) -> None:
    """At whichever of its files it is: sources, the compiler's, the linker's, the module's own."""
    out, cache = disk("out", kib), tmp_path / "cache"
    with pytest.raises(LockError) as raised:
        build_small(out, cache, small_job(1))
    assert raised.value.exit_code == 7
    assert "No space left on device" in str(raised.value)
    assert not (out / "small").exists()
    assert not (out / ".fagen" / "failed").exists()


def test_an_output_disk_that_fills_leaves_the_last_module(disk: Callable[[str, int], Path], tmp_path: Path) -> None:
    out, cache = disk("out", 400), tmp_path / "cache"
    build_small(out, cache, small_job(1))
    filler = fill(out)
    with pytest.raises(LockError) as raised:
        build_small(out, cache, small_job(2))
    assert_says(raised.value, "--out")
    assert assert_whole_copy(out / "small", tmp_path) == 1
    filler.unlink()
    build_small(out, cache, small_job(2))
    assert assert_whole(out / "small") == 2


def assert_whole_copy(folder: Path, elsewhere: Path) -> int:
    """Of a module on a full disk: looking at one writes beside it."""
    subprocess.run(["cp", "-r", folder, elsewhere / folder.name], check=True)
    return assert_whole(elsewhere / folder.name)


def test_a_temporary_folder_that_is_full(
    disk: Callable[[str, int], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers write there: it is not the source that is wrong."""
    folder = disk("temporary", 64)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    fill(folder)
    with pytest.raises(LockError) as raised:
        build_small(tmp_path / "out", tmp_path / "cache", small_job(1))
    assert_says(raised.value, f"0.0 MiB in {folder} (TMPDIR)")


@pytest.mark.parametrize("step", ["-c", "-shared"], ids=["compiler", "linker"])
@pytest.mark.parametrize("words", ["No space left on device", "Disk quota exceeded"])
def test_a_compiler_or_linker_that_says_so(
    step: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words are passed on."""
    compiler = tmp_path / "full-c++"
    line = f"/tmp/ccX.s: Fatal error: can't write 12 bytes to section .text of x.o: '{words}'"
    compiler.write_text(f'#!/bin/sh\ncase " $* " in *" {step} "*) echo "{line}" >&2; exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(LockError) as raised:
        build_small(tmp_path / "out", tmp_path / "cache", small_job(1))
    assert line in str(raised.value)
    assert not (tmp_path / "out" / ".fagen" / "failed").exists()


def test_the_command(disk: Callable[[str, int], Path], tmp_path: Path) -> None:
    """`fagen build` with a full cache: three lines and 7, not a traceback."""
    cache = disk("cache", 16)
    fill(cache)
    (tmp_path / "tiny.yaml").write_text(SPEC)
    environ = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "FAGEN_CACHE_DIR": str(cache),
    }
    done = subprocess.run(
        [sys.executable, "-m", "fagen", "build", "tiny.yaml"], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(rf"^error: {cache}/\S+: .*No space left on device", done.stderr, re.MULTILINE), done.stderr
