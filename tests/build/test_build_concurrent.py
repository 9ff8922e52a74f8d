"""Builders side by side: one good module, one compilation per key, no one reads what another is writing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from small_job import assert_whole, build_small, read_value, small_job

from fagen.build.cache import Cache
from fagen.build.job import Outcome
from fagen.build.lock import module_lock
from fagen.build.progress import Silent
from fagen.build.published import file_digests, read_manifest
from fagen.errors import LockError

SCRIPT = Path(__file__).with_name("small_job.py")
ROOT = Path(__file__).resolve().parents[2]


def counting_compiler(folder: Path) -> tuple[dict[str, str], Path]:
    """A compiler that notes each source it compiles; the environment that selects it, and the file of notes."""
    notes = folder / "notes"
    notes.touch()
    script = folder / "noting-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo "$*" >> "{notes}";; esac\nexec c++ "$@"\n')
    script.chmod(0o755)
    return {**os.environ, "PYTHONPATH": str(ROOT), "CXX": str(script)}, notes


def test_eight_builders_on_an_empty_cache(tmp_path: Path) -> None:
    """Same module and different ones, one builder killed half-way: all good, and one compilation per key."""
    environ, notes = counting_compiler(tmp_path)
    cache = tmp_path / "cache"
    runs = [(tmp_path / ("out" if i < 5 else f"out{i}"), i % 2) for i in range(8)]
    processes = [
        subprocess.Popen(
            [sys.executable, SCRIPT, out, cache, str(value), "3", "0"], env=environ, stderr=subprocess.PIPE
        )
        for out, value in runs
    ]
    processes[0].kill()
    for process in processes:
        _, stderr = process.communicate(timeout=120)
        assert process is processes[0] or process.returncode == 0, stderr.decode()
    for out, value in runs:
        assert assert_whole(out / "small") in {0, 1} if out.name == "out" else assert_whole(out / "small") == value
    compiled = [line.split(" -c ")[1].split()[0] for line in notes.read_text().splitlines()]
    assert set(compiled) == {"value.cpp", "more0.cpp", "more1.cpp", "more2.cpp"}
    # The killed builder's two compilers may have been lost; `value.cpp` has two keys.
    assert len(compiled) <= 5 + 2
    assert compiled.count("more0.cpp") <= 2


def test_second_builder_waits_says_so_and_finds_the_work_done(tmp_path: Path) -> None:
    """One builder at a time per module."""
    notes: list[str] = []
    heard = threading.Event()

    class Listening(Silent):
        def note(self, text: str) -> None:
            notes.append(text)
            heard.set()

    outcomes: list[Outcome] = []
    first = threading.Thread(
        target=lambda: outcomes.append(
            build_small(tmp_path / "out", tmp_path / "cache", small_job(1, pause=1.0), Silent())
        )
    )
    first.start()
    lock = tmp_path / "out" / ".fagen" / "locks" / "small.lock"
    while not (lock.exists() and lock.read_text().strip()):
        pass
    second = build_small(tmp_path / "out", tmp_path / "cache", small_job(1), Listening())
    first.join()
    assert heard.is_set() and notes == [f"waiting for another build of small (process {os.getpid()})"]
    assert second.up_to_date and not outcomes[0].up_to_date


def test_modules_of_other_names_do_not_wait(tmp_path: Path) -> None:
    """The lock is per module."""
    with module_lock(tmp_path / "out" / ".fagen" / "locks" / "small.lock", print):
        outcome = build_small(tmp_path / "out", tmp_path / "cache", small_job(1, name="smaller"))
    assert assert_whole(outcome.folder) == 1


def test_a_killed_holder_frees_the_lock(tmp_path: Path) -> None:
    """The lock is the operating system's, not a file that someone must delete."""
    lock = tmp_path / "out" / ".fagen" / "locks" / "small.lock"
    code = (
        "import sys, pathlib, time; from fagen.build.lock import module_lock\n"
        "with module_lock(pathlib.Path(sys.argv[1]), print): print('held', flush=True); time.sleep(60)"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    holder = subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, env=environ)
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.kill()
    holder.wait()
    build_small(tmp_path / "out", tmp_path / "cache", small_job(1))


def test_a_folder_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    """A module's place may hold somebody's files."""
    mine = tmp_path / "out" / "small" / "thesis.tex"
    mine.parent.mkdir(parents=True)
    mine.write_text("chapter 1")
    with pytest.raises(LockError, match="no build of fagen made"):
        build_small(tmp_path / "out", tmp_path / "cache", small_job(1))
    assert mine.read_text() == "chapter 1"


def test_a_cache_trimmed_by_another_while_this_one_builds(tmp_path: Path) -> None:
    """What was found there and what was just put there may both be gone before the link."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(1))
    trims = []

    class Trimming(Silent):
        """Another builder's trim, as this one starts to compile and again after each unit."""

        def stage(self, text: str, total: int) -> None:
            trims.append(text)
            Cache(cache).trim(0)

        def finish(self, step: str, detail: str) -> None:
            self.stage(step, 0)

    outcome = build_small(out, cache, small_job(2), Trimming())
    assert set(outcome.compiled.cached) == {"more0", "more1", "more2"}
    assert set(outcome.compiled.made) == {"value"} < set(trims)
    assert not list((cache / "objects").rglob("*.o"))
    assert assert_whole(out / "small") == 2


def test_files_of_the_users_outlive_the_next_build(tmp_path: Path) -> None:
    """Beside ours and below them, links and open files too; where ours stands, under another name; and it says so."""
    out, cache, notes = tmp_path / "out", tmp_path / "cache", Notes()
    folder = build_small(out, cache, small_job(1), notes).folder
    (folder / "thesis.tex").write_text("chapter 1")
    (folder / "plots" / "deep").mkdir(parents=True)
    (folder / "plots" / "deep" / "a.png").write_bytes(b"png")
    (folder / "data").symlink_to(tmp_path)
    (folder / "later.txt").write_text("mine")
    (folder / "value.txt.kept").write_text("mine, too")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"")
    handle = (folder / "thesis.tex").open("a")
    kept = {"thesis.tex", "plots/deep/a.png", "data", "later.txt.kept", "value.txt.kept"}
    for value in (2, 3):
        outcome = build_small(out, cache, small_job(value, more="later.txt"), notes)
        assert set(outcome.kept) == kept
        assert assert_whole_but(folder, kept) == value
        assert (folder / "later.txt").read_text() == "more"
        assert (folder / "later.txt.kept").read_text() == "mine"
        assert os.readlink(folder / "data") == str(tmp_path)
        assert not (folder / "__pycache__").exists()
    assert len(notes.said) == 2 and all(name in notes.said[0] for name in kept)
    handle.write(", chapter 2")
    handle.close()
    assert (folder / "thesis.tex").read_text() == "chapter 1, chapter 2"


def test_files_of_the_users_where_the_manifest_is_lost(tmp_path: Path) -> None:
    """What a build of the same module writes is ours, and so are the folders that builds fill."""
    folder = build_small(tmp_path / "out", tmp_path / "cache", small_job(1)).folder
    (folder / "__init__.py").write_text('"""fused attention, rendered by fagen from small.yaml"""')
    (folder / "manifest.json").unlink()
    (folder / "library_01234567.so").write_bytes(b"")
    (folder / "runtime").mkdir()
    (folder / "runtime" / "ops.py").write_text("")
    (folder / "thesis.tex").write_text("chapter 1")
    assert build_small(tmp_path / "out", tmp_path / "cache", small_job(2)).kept == ("thesis.tex",)
    assert assert_whole_but(folder, {"thesis.tex"}) == 2


def assert_whole_but(folder: Path, names: set[str]) -> int:
    """The same of a module that holds other files."""
    manifest = read_manifest(folder)
    assert manifest is not None
    found = {path: digest for path, digest in file_digests(folder).items() if path not in names}
    assert {path: digest for path, digest in found.items() if not path.startswith("data/")} == manifest["files"]
    return read_value(folder)


class Notes(Silent):
    """What a build said in lines of their own."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_readers_see_one_build_or_the_other(tmp_path: Path) -> None:
    """A program that reads while modules are swapped finds one there at every moment, of one piece."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(0))
    stop = threading.Event()
    missing = 0
    seen = set()

    def read() -> None:
        nonlocal missing
        while not stop.is_set():
            try:
                # Through one open folder, as the kernel sees it, so that the two files are of one build.
                handle = os.open(out / "small", os.O_RDONLY)
            except FileNotFoundError:
                missing += 1
                continue
            try:
                with open(os.open("manifest.json", os.O_RDONLY, dir_fd=handle), "rb") as file:
                    seen.add(json.load(file)["checked"])
            except FileNotFoundError:
                pass  # the build was replaced and deleted between the two calls
            finally:
                os.close(handle)

    reader = threading.Thread(target=read)
    reader.start()
    for value in range(1, 9):
        build_small(out, cache, small_job(value), Silent())
    stop.set()
    reader.join()
    assert missing == 0
    assert len(seen) > 1
