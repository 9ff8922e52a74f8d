"""Builders that die: no half module, nothing to mend by hand."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_job import assert_whole, build_small, small_job

from fagen.build import publish
from fagen.build.publish import Places

SCRIPT = Path(__file__).with_name("small_job.py")
ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 24


def start(out: Path, cache: Path, value: int, steps: str = "one-step") -> subprocess.Popen[bytes]:
    command = [sys.executable, SCRIPT, out, cache, str(value), "2", "0.02", steps]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ, start_new_session=True
    )


@pytest.mark.parametrize("steps", ["one-step", "two-step"])
def test_kill_at_random_moments(tmp_path: Path, steps: str) -> None:
    """After each kill the published module is the last good one or the new one, whole; the next build needs no hand."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    moments = random.Random(seed)
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(0))
    started = time.monotonic()
    process = start(out, cache, 1, steps)
    assert process.wait() == 0
    assert (out / "two-step").exists() is (steps == "two-step")
    whole = time.monotonic() - started
    good = {0, 1}
    for value in range(2, ROUNDS):
        process = start(out, cache, value, steps)
        time.sleep(moments.uniform(0, whole))
        # Sometimes the builder alone, sometimes everything it started too.
        (os.kill if value % 2 else os.killpg)(process.pid, signal.SIGKILL)
        process.wait()
        good.add(value)
        if steps == "two-step":  # it may have died between its two renames; the next build begins with this
            Places(out, "small").recover()
        assert assert_whole(out / "small") in good
    build_small(out, cache, small_job(1000))
    assert assert_whole(out / "small") == 1000
    assert list((out / ".fagen" / "staging").iterdir()) == []
    assert not (out / ".fagen" / "old" / "small").exists()


def test_death_between_the_two_renames_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system cannot exchange, the next build puts the last good module back first."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    build_small(out, cache, small_job(1))
    places = Places(out, "small")
    (out / ".fagen" / "old").mkdir()
    os.rename(places.module, out / ".fagen" / "old" / "small")
    places.recover()
    assert assert_whole(places.module) == 1
    monkeypatch.setattr(publish, "_exchange", lambda first, second: False)
    build_small(out, cache, small_job(2))
    assert assert_whole(places.module) == 2


def test_compilers_stop_when_their_builder_is_killed(tmp_path: Path) -> None:
    """ninja gets a signal from the kernel and stops what it had started."""
    slow = tmp_path / "slow-c++"
    marker = tmp_path / "marker"
    slow.write_text(f'#!/bin/sh\ncase "$*" in *" -c "*) echo $$ >> "{marker}"; sleep 60;; esac\nexec c++ "$@"\n')
    slow.chmod(0o755)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "CXX": str(slow)}
    process = subprocess.Popen([sys.executable, SCRIPT, tmp_path / "out", tmp_path / "cache", "1"], env=environ)
    deadline = time.monotonic() + 20
    while not (marker.exists() and marker.read_text().strip()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    pids = [int(line) for line in marker.read_text().split()]
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a compiler outlived its builder"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
