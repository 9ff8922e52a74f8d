"""`fagen build` when something is wrong: which exit code, what it says, and what stays as it was."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fagen_command import ROOT, SPEC, fagen, use


@pytest.fixture
def read_only(cache: Path) -> Iterator[Path]:
    """The cache as a mount that cannot be written, not even by root."""
    mounted = subprocess.run(["mount", "--bind", cache, cache], check=False, capture_output=True)
    if mounted.returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
    elif os.getuid() != 0:
        for path in [cache, *cache.rglob("*")]:
            if path.is_dir():
                path.chmod(0o555)
    else:
        pytest.skip("root can write everywhere, and mounting is not allowed here")
    yield cache
    if mounted.returncode == 0:
        subprocess.run(["umount", cache], check=True)
    for path in [cache, *cache.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def test_read_only_cache(place: Path, cache: Path, request: pytest.FixtureRequest) -> None:
    """What is prebuilt builds; what is not ends in one line that says what to do."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    request.getfixturevalue("read_only")
    value, _ = fagen("build", "tiny.yaml", "--out", "again", cwd=place, cache=cache)
    assert value["builds"][0]["compiled"] == []
    (place / "tiny.yaml").write_text(SPEC.replace("head_dim: 8}", "head_dim: 9}"))
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, code=7)
    assert f"error: the object cache {cache} cannot be written" in stderr
    assert "FAGEN_CACHE_DIR" in stderr
    use(place)


def test_output_that_cannot_be_written(place: Path, cache: Path) -> None:
    _, stderr = fagen("build", "tiny.yaml", "--out", "/proc/fagen", cwd=place, cache=cache, code=7)
    assert "error: the output folder /proc/fagen cannot be written" in stderr


def test_compile_error(place: Path, cache: Path, source: Path) -> None:
    """The first error, the rendered source's path and line, the command; the last good module stays."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    template = next(path for path in (source / "templates" / "cpu").glob("forward*") if path.is_file())
    template.write_text(template.read_text() + "\nstatic int broken = nonsense;\n")
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=5)
    match = re.search(r"error: (\S+\.cpp):(\d+):\d+: .*nonsense.* \(compiling (full|causal) forward\)", stderr)
    assert match is not None, stderr
    kept = place / match[1]
    assert "nonsense" in kept.read_text().splitlines()[int(match[2]) - 1]
    assert value["exit_code"] == 5
    command = re.search(r"to repeat it: (cd .*)", stderr)
    assert command is not None
    again = subprocess.run(command[1], shell=True, cwd=place, check=False, capture_output=True, text=True)
    assert again.returncode != 0
    assert "nonsense" in again.stderr
    use(place)


def test_template_error_names_the_template(place: Path, cache: Path, source: Path) -> None:
    """A slip in a template: the place in it and the variant, not a stack trace."""
    template = next(path for path in (source / "templates" / "cpu").glob("forward*") if path.is_file())
    template.write_text(template.read_text() + "\n{{ no_such_name }}\n")
    _, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=1)
    assert "no_such_name" in stderr
    assert template.name in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_leaves_nothing_behind(number: signal.Signals, code: int, place: Path, tmp_path: Path) -> None:
    """Ctrl-C or a polite kill: an exit code of its own, the private folder gone, the compilers stopped."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "FAGEN_CACHE_DIR": str(tmp_path / "empty")}
    command = [sys.executable, "-m", "fagen", "build", "tiny.yaml"]
    process = subprocess.Popen(
        command, cwd=place, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    staging = place / "generated" / ".fagen" / "staging"
    deadline = time.monotonic() + 60
    while not list(staging.glob("*/*/build.ninja")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    # From a terminal, Ctrl-C reaches every process of the group; `kill` reaches one.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert list(staging.iterdir()) == []
    assert not (place / "generated" / "tiny").exists()


FAULTS = {"another scale": "p.scale = 1.01f * stack.real();", "crash": "*(volatile int*)8 = 1;"}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernel(fault: str, place: Path, cache: Path, source: Path) -> None:
    """Is not published: 6, the variant and the command that repeats it; the last good module stays."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    header = source / "templates" / "include" / "fagen" / "host" / "ops.h"
    right = "p.scale = stack.real();"
    assert right in header.read_text()
    header.write_text(header.read_text().replace(right, FAULTS[fault]))
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=6)
    assert value["exit_code"] == 6
    assert "error: causal computes a wrong number" in stderr
    again = re.search(r"repeat: fagen (check .* -v causal .*)", stderr)
    assert again is not None
    fagen(*shlex.split(again[1]), cwd=place, cache=cache, root=source, code=6)
    use(place)
