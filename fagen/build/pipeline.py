"""`fagen build`: a spec file to a published module."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ToolchainError
from ..resources import templates_dir, tuning_file
from ..toolchain import Compiler, Torch, find_compiler, find_ninja, find_nvcc, find_torch
from .cache import locate_cache
from .job import Outcome, Tools, run, write_report
from .keys import digest, tree_digest
from .progress import Progress, Silent
from .publish import Places
from .published import LEVELS, find_current, read_manifest, warnings

_PACKAGE = Path(__file__).resolve().parents[1]
_MAX_SPEC_BYTES = 16 << 20  # larger files are left to `load`, which says what is wrong with them


@dataclass(frozen=True)
class BuildResult:
    """What a build did.

    ``compiled`` and ``cached`` name the units whose objects were made and found; both are empty and ``up_to_date`` is
    true if the published module was already what the spec gives. ``report`` is JSON-able: jobs, seconds per stage,
    seconds and peak memory (MiB) per unit, and the check.
    """

    folder: Path
    compiled: tuple[str, ...] = ()
    cached: tuple[str, ...] = ()
    up_to_date: bool = False
    seconds: float = 0.0
    report: Mapping[str, Any] = field(default_factory=dict)


def build(
    spec_path: str | Path,
    *,
    out: str | Path = "generated",
    check: str = "auto",
    jobs: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Build the module of a spec and publish it in ``out``.

    ``check`` is "auto" (within a time budget), "full" or "off"; ``jobs`` replaces MAX_JOBS; ``force`` checks and
    publishes again what is up to date (objects still come from the cache). Raises a :class:`FagenError`, and then the
    last published module is untouched.
    """
    if check not in LEVELS:
        raise ValueError(f"check={check!r}: expected one of {', '.join(LEVELS)}")
    started = time.monotonic()
    progress = progress or Silent()
    path, out = Path(spec_path), Path(out).absolute()
    try:
        compiler, torch = find_compiler(), find_torch()
        inputs = _inputs_digest(path, compiler, torch)
        current = None if force or inputs is None else find_current(out, inputs, check)
        if current is not None:
            return _up_to_date(current, started)
        tools = Tools(compiler, find_ninja(), locate_cache())
        from .module_job import make_job  # the rest of the compiler: an unchanged build does without

        job = make_job(path, inputs, compiler, torch, None if force else tools.cache, check)
        places = Places(out, job.name)
        outcome = run(job, places, tools, jobs=jobs, force=force, progress=progress)
    finally:
        progress.close()
    if outcome.up_to_date:
        return _up_to_date(outcome.folder, started)
    result = _result(outcome, started)
    try:
        write_report(places, result.report)
    except OSError:  # the module is published, and nobody needs what was said of the one before
        places.report.unlink(missing_ok=True)
    return result


def _inputs_digest(path: Path, compiler: Compiler, torch: Torch) -> str | None:
    """Equal for two builds that must give the same module. None if the spec cannot be read.

    All of fagen counts, so that a build with nothing to do need not even plan.
    """
    from ..target import resolve_isa

    try:
        if path.stat().st_size > _MAX_SPEC_BYTES:
            return None
        text = path.read_bytes()
    except OSError:
        return None
    nvcc = ""
    if b"sm_" in text or b"native" in text:  # whatever the word stands for
        with suppress(ToolchainError):
            nvcc = find_nvcc().identity
    tuning = b""
    with suppress(OSError):
        tuning = tuning_file(path).read_bytes()
    return digest(
        {
            "fagen": tree_digest([_PACKAGE], (".py",)),
            "templates": tree_digest([templates_dir()], (".j2", ".h", ".cuh", ".jinja", ".cpp", ".py", ".S")),
            "spec": [path.name, text.hex()],
            "tuning": tuning.hex(),
            "compiler": compiler.identity,
            "torch": torch.version,
            "nvcc": nvcc,
            "isa": resolve_isa("native"),
        }
    )


def _up_to_date(folder: Path, started: float) -> BuildResult:
    manifest = read_manifest(folder) or {}
    seconds = round(time.monotonic() - started, 3)
    report = {
        "status": "up to date",
        "name": manifest.get("name"),
        "folder": str(folder),
        "variants": [entry["variant"]["name"] for entry in manifest.get("variants", [])],
        "skipped": manifest.get("skipped", []),
        "compiled": [],
        "cached": [],
        "units": {},
        "warnings": warnings(manifest.get("variants", [])),
        "check": manifest.get("check"),
        "seconds": {"total": seconds},
    }
    return BuildResult(folder, up_to_date=True, seconds=seconds, report=report)


def _result(outcome: Outcome, started: float) -> BuildResult:
    seconds = round(time.monotonic() - started, 3)
    manifest = read_manifest(outcome.folder) or {}
    compiled, cached = outcome.compiled.made, outcome.compiled.cached
    report = {
        "status": "built",
        "name": manifest.get("name"),
        "folder": str(outcome.folder),
        "variants": [entry["variant"]["name"] for entry in manifest.get("variants", [])],
        "skipped": manifest.get("skipped", []),
        "compiled": list(compiled),
        "cached": list(cached),
        "units": {
            label: {"seconds": cost.seconds, "peak_mb": cost.peak_mb, "cached": label in cached}
            for label, cost in {**compiled, **cached}.items()
        },
        "resources": {
            kernel: taken
            for entry in manifest.get("variants", [])
            for kernel, taken in entry.get("resources", {}).items()
        },
        "jobs": outcome.compiled.jobs,
        "kept": list(outcome.kept),
        "warnings": warnings(manifest.get("variants", [])),
        "check": manifest.get("check"),
        "seconds": {**outcome.seconds, "total": seconds},
    }
    return BuildResult(outcome.folder, tuple(compiled), tuple(cached), seconds=seconds, report=report)
