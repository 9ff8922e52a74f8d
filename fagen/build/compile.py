"""Sources to objects: ninja runs a compiler for each one that the cache lacks, in a private folder."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Problem, ToolchainError
from ..toolchain import Compiler
from . import compile_unit
from .budget import DEFAULT_PEAK_MB, job_limit
from .cache import Cache, Cost
from .compile_unit import write_object
from .failure import Failure, compile_error
from .keys import Headers
from .progress import Progress
from .room import require_room

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Unit:
    """One translation unit.

    ``file`` is its name in the private folder, ``label`` what people call it. ``flags`` are part of ``key``;
    ``local_flags`` (paths on this machine) are not. ``beside`` are suffixes of the files that are kept beside the
    object (see compile_unit.py). ``commands``, if there are any, make the object in place of the C++ compiler's own.
    """

    file: str
    label: str
    text: str
    flags: tuple[str, ...]
    key: str
    local_flags: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    commands: tuple[tuple[str, ...], ...] = ()


@dataclass
class Compiled:
    """What a call of :func:`compile_units` did: costs by unit label, and the largest number of parallel compilers."""

    made: dict[str, Cost] = field(default_factory=dict)
    cached: dict[str, Cost] = field(default_factory=dict)
    jobs: int = 0


def compile_units(
    units: Sequence[Unit],
    *,
    headers: Headers,
    compiler: Compiler,
    ninja: Path,
    cache: Cache,
    work: Path,
    failed: Path,
    jobs: int | None,
    progress: Progress,
) -> Compiled:
    """Bring the object of every unit into ``work``, this build's private folder, and into the cache.

    ``failed`` is where the source of a unit that does not compile is kept. Raises :class:`CompileError` with the first
    error of the first unit that a compiler refuses, and OSError if a disk is full.
    """
    result = Compiled()
    missing = []
    for unit in units:
        entry = cache.lookup(unit.key, unit.beside)
        if entry is None:
            missing.append(unit)
        else:
            write_object(object_of(unit, work), entry.data, entry.beside)
            result.cached[unit.label] = entry.cost
    if not missing:
        return result
    cache.require_writable()
    history = cache.history()
    expected = {unit.label: history.get(unit.label, Cost(0.0, DEFAULT_PEAK_MB)) for unit in missing}
    # The slowest first, so that the last to end is short; among equals, the order of the spec.
    missing.sort(key=lambda unit: -expected[unit.label].seconds)
    result.jobs = job_limit((cost.peak_mb for cost in expected.values()), asked=jobs)
    _write_inputs(work, missing, headers, compiler, cache)
    progress.stage("compile", len(missing))
    failure = _run_ninja(work, missing, ninja, result, progress)
    cache.remember(result.made)
    if failure is not None:
        raise compile_error(failure, failed)
    cache.touch(unit.key for unit in units)
    cache.trim()
    return result


def object_of(unit: Unit, work: Path) -> Path:
    """Where the object of a unit is in the private folder, what is kept with it beside it."""
    # Objects that count lines keep this name inside them: what they count goes to KEY.gcda.
    return work / object_name(unit.key)


def object_name(key: str) -> str:
    """What the object of a key is called."""
    return f"{key}.o"


def compile_commands(unit: Unit, compiler: Compiler, output: str) -> list[list[str]]:
    """The commands that compile a unit in a folder holding its source and ``include/``."""
    if unit.commands:
        return [list(command) for command in unit.commands]
    command = [*compiler.command, *unit.flags, *unit.local_flags, "-Iinclude", "-fdiagnostics-color=never"]
    return [[*command, "-c", unit.file, "-o", output]]


def _write_inputs(work: Path, units: Sequence[Unit], headers: Headers, compiler: Compiler, cache: Cache) -> None:
    headers.write(work / "include")
    entries: list[dict[str, Any]] = []
    lines = [
        "rule unit",
        f"  command = {_ninja_command([sys.executable, '-I', '-S', compile_unit.__file__, 'units.json'])} $index",
        "  description = $label",
    ]
    for index, unit in enumerate(units):
        (work / unit.file).write_text(unit.text, encoding="utf-8")
        output = object_of(unit, work).name
        entries.append(
            {
                "key": unit.key,
                "commands": compile_commands(unit, compiler, output),
                "output": output,
                "log": f"{index}.log",
                "object": str(cache.object_path(unit.key)),
                "beside": unit.beside,
            }
        )
        # The object in the cache is no ninja output: names there may hold anything, and ninja needs none of them.
        lines += [f"build {index}.stamp: unit", f"  index = {index}", f"  label = {_ninja_text(unit.label)}"]
    (work / "events").write_bytes(b"")
    plan = {"cache": str(cache.root), "events": "events", "units": entries}
    (work / "units.json").write_text(json.dumps(plan), encoding="utf-8")
    (work / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _run_ninja(work: Path, units: Sequence[Unit], ninja: Path, result: Compiled, progress: Progress) -> Failure | None:
    command = [sys.executable, "-I", "-S", compile_unit.__file__, "--ninja", str(os.getpid())]
    command += [str(ninja), "-j", str(result.jobs)]
    environ = {**os.environ, "LC_ALL": "C"}
    # What ninja prints is kept in memory: on a full disk it would be lost.
    with os.fdopen(os.memfd_create("ninja"), "r+b") as log, open(work / "events", "rb") as events:
        process = subprocess.Popen(
            command, cwd=work, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environ
        )
        try:
            failure = None
            unread = b""
            running = True
            while running:
                running = process.poll() is None
                *lines, unread = (unread + events.read()).split(b"\n")
                for line in lines:
                    found = _take_event(json.loads(line), work, units, result, progress)
                    failure = failure or found
                if running:
                    time.sleep(_POLL_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        log.seek(0)
        text = log.read().decode(errors="replace").strip()
    if process.returncode != 0:
        require_room(text)
        if failure is None:
            raise ToolchainError(Problem(f"ninja failed with status {process.returncode}: {text[-500:]}"))
    return failure


def _take_event(
    event: dict[str, Any], work: Path, units: Sequence[Unit], result: Compiled, progress: Progress
) -> Failure | None:
    unit = units[event["unit"]]
    match event["event"]:
        case "start":
            progress.start(unit.label)
        case "cached":
            result.cached[unit.label] = Cost(event["seconds"], event["peak_mb"])
            progress.finish(unit.label, "compiled by another build")
        case "done":
            cost = Cost(event["seconds"], event["peak_mb"])
            result.made[unit.label] = cost
            progress.finish(unit.label, f"{cost.seconds:.1f} s, {cost.peak_mb:.0f} MiB")
        case "failed":
            progress.finish(unit.label, "failed")
            plan = json.loads((work / "units.json").read_bytes())["units"][event["unit"]]
            return Failure(
                label=unit.label,
                folder=work,
                file=unit.file,
                command=tuple(plan["commands"][event["step"]]),
                status=event["status"],
                output=(work / plan["log"]).read_text(encoding="utf-8", errors="replace"),
            )
    return None


def _ninja_command(words: Sequence[str]) -> str:
    return _ninja_text(shlex.join(words))


def _ninja_text(text: str) -> str:
    return text.replace("$", "$$").replace("\n", " ")
