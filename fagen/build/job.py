"""From units to a published folder: lock, compile, link, fill, check, swap. What is built is the caller's business."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import CheckError, LockError, Problem
from ..toolchain import Compiler
from .cache import Cache
from .compile import Compiled, Unit, compile_units, object_of
from .compile_unit import put
from .failure import shown_path
from .keys import Headers
from .link import link_library
from .lock import module_lock
from .others import carry_over
from .progress import Progress
from .publish import Places
from .published import is_current, is_rendered, read_manifest, write_manifest
from .room import is_no_room, no_room


@dataclass(frozen=True)
class Job:
    """One module to build.

    ``fill`` writes all files of the module but the library and the manifest into the first folder it is given, and
    returns what the manifest adds for them; the second has the objects. ``check`` imports the module from the first
    folder it is given and returns what the manifest adds for it; it raises :class:`CheckError` if a variant is wrong,
    and then the module is kept in the second. ``inputs`` is equal for two jobs that give the same module.
    """

    name: str
    inputs: str
    library: str
    units: Sequence[Unit]
    name_unit: str  # a C++ source compiled at every link, for the little that differs from build to build
    headers: Headers
    link_flags: Sequence[str]
    manifest: Mapping[str, Any]
    check_level: str
    fill: Callable[[Path, Path, Progress], Mapping[str, Any]]
    check: Callable[[Path, Path, Progress], Mapping[str, Any]]


@dataclass(frozen=True)
class Tools:
    """What compiles: a compiler, ninja, and the cache that keeps objects."""

    compiler: Compiler
    ninja: Path
    cache: Cache


@dataclass
class Outcome:
    """What :func:`run` did. ``up_to_date`` means that another builder had just made the same module; ``kept`` names
    what somebody had put into its folder."""

    folder: Path
    up_to_date: bool = False
    compiled: Compiled = field(default_factory=Compiled)
    seconds: dict[str, float] = field(default_factory=dict)
    checks: Mapping[str, Any] = field(default_factory=dict)
    kept: tuple[str, ...] = ()


def run(job: Job, places: Places, tools: Tools, *, jobs: int | None, force: bool, progress: Progress) -> Outcome:
    """Build ``job`` and publish it at ``places.module``; on any error the last published module stays as it was."""

    def waiting(pid: str) -> None:
        progress.note(f"waiting for another build of {job.name} (process {pid})")

    try:
        with module_lock(places.lock, waiting):
            return _run(job, places, tools, jobs, force, progress)
    except OSError as error:
        if not is_no_room(error):
            raise
        raise no_room(error, {"--out": places.out, "FAGEN_CACHE_DIR": tools.cache.root}) from None


def _run(job: Job, places: Places, tools: Tools, jobs: int | None, force: bool, progress: Progress) -> Outcome:
    places.recover()
    if not force and is_current(places.module, job.inputs, job.check_level):
        return Outcome(places.module, up_to_date=True)
    _require_ours(places.module)
    private = places.new_staging()
    try:
        outcome = _build(job, places, tools, private, jobs, progress)
    finally:
        shutil.rmtree(private, ignore_errors=True)
    shutil.rmtree(places.failed, ignore_errors=True)
    return outcome


def _build(job: Job, places: Places, tools: Tools, private: Path, jobs: int | None, progress: Progress) -> Outcome:
    outcome = Outcome(places.module)
    work, module = private / "work", private / job.name
    work.mkdir()
    module.mkdir()
    clock = time.monotonic()

    def lap(stage: str) -> None:
        nonlocal clock
        clock, before = time.monotonic(), clock
        outcome.seconds[stage] = round(clock - before, 3)

    outcome.compiled = compile_units(
        job.units,
        headers=job.headers,
        compiler=tools.compiler,
        ninja=tools.ninja,
        cache=tools.cache,
        work=work,
        failed=places.failed,
        jobs=jobs,
        progress=progress,
    )
    lap("compile")
    (work / "name.cpp").write_text(job.name_unit, encoding="utf-8")
    inputs = [work / "name.cpp", *(object_of(unit, work) for unit in job.units)]
    link_library(module / job.library, inputs, job.link_flags, tools.compiler, places.failed)
    lap("link")
    manifest = {**job.manifest, **job.fill(module, work, progress)}
    write_manifest(module, manifest)
    try:
        outcome.checks = job.check(module, places.failed / job.name, progress)
    except CheckError:
        _keep_failed(module, places)
        raise
    write_manifest(module, {**manifest, **outcome.checks})
    lap("check")
    for folder in list(module.rglob("__pycache__")):
        shutil.rmtree(folder, ignore_errors=True)
    if places.module.is_dir():
        outcome.kept = carry_over(places.module, module)
    places.publish(module)
    if outcome.kept:
        progress.note(f"{shown_path(places.module)}: kept what no build wrote: {', '.join(outcome.kept)}")
    lap("publish")
    return outcome


def write_report(places: Places, report: Mapping[str, Any]) -> None:
    """Keep what the build did beside the module, not in it: times differ from build to build."""
    places.report.parent.mkdir(parents=True, exist_ok=True)
    put(places.report, json.dumps(report, indent=1).encode())


def _keep_failed(module: Path, places: Places) -> None:
    shutil.rmtree(places.failed, ignore_errors=True)
    places.failed.mkdir(parents=True)
    shutil.move(module, places.failed / module.name)


def _require_ours(folder: Path) -> None:
    """Refuse to replace a folder that no build made."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise LockError(Problem(f"{folder} is in the way: it is no folder", hint="move it, or choose another --out"))
    if folder.is_dir() and any(folder.iterdir()) and read_manifest(folder) is None and not is_rendered(folder):
        raise LockError(
            Problem(
                f"{folder} holds files that no build of fagen made",
                hint="move or delete the folder, choose another --out, or give the spec another name",
            )
        )
