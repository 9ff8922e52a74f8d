"""A module that compiles in a blink, built by the machinery of `fagen build`; also a program, to be killed.

    small_job.py OUT CACHE VALUE [UNITS] [SECONDS] [two-step]

With ``two-step`` it publishes as where a file system cannot exchange two folders, and leaves OUT/two-step.

The library's ``value()`` returns VALUE, and ``value.txt`` beside it says the same, so a mixed or half module shows.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path

from fagen.build import publish
from fagen.build.cache import Cache
from fagen.build.compile import Unit
from fagen.build.job import Job, Outcome, Tools, run
from fagen.build.keys import Headers, digest, object_key
from fagen.build.progress import Plain, Progress
from fagen.build.publish import Places
from fagen.build.published import file_digests, read_manifest
from fagen.errors import CheckError
from fagen.toolchain import find_compiler, find_ninja

FLAGS = ("-std=c++17", "-fPIC")
HEADERS = Headers({"part.h": b"#pragma once\ninline int part(int x) { return x; }\n"})


def small_job(
    value: int,
    units: int = 3,
    *,
    name: str = "small",
    pause: float = 0.0,
    headers: Headers = HEADERS,
    more: str | None = None,
) -> Job:
    """A job of ``units`` + 1 units, of which only one depends on ``value``; filling takes ``pause`` seconds.

    The module holds a file called ``more``, if that is given.
    """
    tools_identity = find_compiler().identity
    texts = {"value": f'#include "part.h"\nextern "C" int value() {{ return part({value}); }}\n'}
    texts |= {f"more{i}": f"int more{i}() {{ return {i}; }}\n" for i in range(units)}
    made = [
        Unit(f"{file}.cpp", file, text, FLAGS, object_key(text, FLAGS, headers, compiler=tools_identity))
        for file, text in texts.items()
    ]
    inputs = digest([value, units, name])

    def fill(folder: Path, work: Path, progress: Progress) -> dict[str, object]:
        (folder / "__init__.py").write_text("")
        time.sleep(pause)
        (folder / "value.txt").write_text(str(value))
        if more is not None:
            (folder / more).write_text("more")
        return {}

    def check(folder: Path, kept: Path, progress: Progress) -> dict[str, object]:
        if read_value(folder) != value:
            raise CheckError("wrong value")
        return {"checked": value}

    manifest = {"fagen": "0", "name": name, "build": {"inputs": inputs, "check": "auto"}}
    return Job(name, inputs, "library.so", made, "", headers, (), manifest, "auto", fill, check)


def read_value(folder: Path) -> int:
    """What the library of a module returns, having seen that the module is whole and of one piece."""
    manifest = read_manifest(folder)
    assert manifest is not None, f"no manifest in {folder}"
    text = int((folder / "value.txt").read_text())
    # A copy: dlopen gives the library that the process has already opened under a name.
    copy = folder.parent / f"copy-{time.monotonic_ns()}.so"
    copy.write_bytes((folder / "library.so").read_bytes())
    try:
        assert ctypes.CDLL(str(copy)).value() == text
    finally:
        copy.unlink()
    return text


def assert_whole(folder: Path) -> int:
    """The value of a published module, every file of which is what its manifest says."""
    manifest = read_manifest(folder)
    assert manifest is not None
    assert manifest["files"] == file_digests(folder)
    value = read_value(folder)
    assert manifest["checked"] == value, "published before it was checked"
    return value


def build_small(out: Path, cache: Path, job: Job, progress: Progress | None = None) -> Outcome:
    """Build it."""
    tools = Tools(find_compiler(), find_ninja(), Cache(cache))
    return run(job, Places(out, job.name), tools, jobs=None, force=False, progress=progress or Plain())


def publish_in_two_steps(marker: Path) -> None:
    """Take the way of a file system that cannot exchange, and say so in the file ``marker``."""

    def refuse(first: Path, second: Path) -> bool:
        marker.touch()
        return False

    publish._exchange = refuse


if __name__ == "__main__":
    out, cache = map(Path, sys.argv[1:3])
    value, units, pause, steps = (*sys.argv[3:], *("3", "0", "")[len(sys.argv) - 4 :])
    if steps == "two-step":
        publish_in_two_steps(out / "two-step")
    build_small(out, cache, small_job(int(value), int(units), pause=float(pause)))
