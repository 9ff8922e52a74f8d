"""Checks the variants of a built module, keeps what was found by the hash of what was checked, and says it in words.

The check itself is in fagen/runtime/check, which every published module carries.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import CheckError, Problem, SpecError, UsageError
from ..runtime.check.drive import Wish, check_variants
from ..runtime.check.report import FAILED, CheckReport, VariantReport, explain
from ..runtime.check.where import Where, find_where
from ..toolchain import find_torch
from .cache import Cache, locate_cache
from .keys import digest, tree_digest
from .progress import Progress, Silent

SEED = 0  # of a build's check, so that building the same again finds the same
BUDGET = 60.0  # seconds for a build's check, all variants together
EMULATED_SECONDS = 30.0  # for each variant, if that is longer: twice what most need on two idle cores
_ROOT = Path(__file__).resolve().parents[1]
_RUNTIME = _ROOT / "runtime"
_PLACES = ("line", "column")
_COVERAGE = Path(__file__).resolve().parent / "coverage.py"


def check_module(
    folder: Path,
    *,
    level: str = "auto",
    cache: Cache | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> dict[str, Any]:
    """A build's check: what the manifest of the module in ``folder`` is to say of it.

    That is ``check`` (the summary) and ``variants`` (each entry with its report under ``check``). Kernels for cards run
    on one that is here, else in the emulator. Verdicts are looked up in ``cache`` and kept there. Raises
    :class:`CheckError`, saying what is wrong and how to repeat it (``command`` begins that, up to the variant's name),
    if a variant computes a wrong number.
    """
    manifest = _manifest(folder)
    where = _where(manifest, None)
    budget = max(BUDGET, EMULATED_SECONDS * len(manifest["variants"]) if where.emulator else 0.0)
    report = check_folder(
        folder, level=level, seed=SEED, budget=budget if level == "auto" else None, cache=cache, progress=progress,
        command=command,
    )  # fmt: skip
    if report.verdict == FAILED:
        raise CheckError([_problem(entry) for entry in report.variants if entry.verdict == FAILED])
    found = {entry.variant: _lasting(entry) for entry in report.variants}
    entries = [{**entry, "check": found[entry["variant"]["name"]]} for entry in manifest["variants"]]
    summary = {
        "verdict": report.verdict,
        "on": where.title,
        "level": level,
        "seed": SEED,
        "mutants": sum(entry.mutants for entry in report.variants),
        "killed": sum(entry.killed for entry in report.variants),
        "unrun": sum(len(entry.unrun) for entry in report.variants),
    }
    return {"check": summary, "variants": entries}


def check_folder(
    folder: Path,
    *,
    names: Sequence[str] | None = None,
    level: str = "auto",
    seed: int | None = None,
    case: str | None = None,
    on: str | None = None,
    budget: float | None = None,
    cache: Cache | None = None,
    progress: Progress | None = None,
    command: str | None = None,
) -> CheckReport:
    """Check the module in ``folder``, or those of its variants that are named, in processes of their own.

    ``level`` is "auto" or "full"; ``seed`` None draws a new one; ``case`` runs that case alone; ``budget`` is in
    seconds, for all variants together. ``on`` ("device" or "emulator") says where kernels for cards are to run; None
    is the best there is. With a ``cache``, verdicts kept there are not found again. Raises :class:`SpecError` for a
    variant that there is not, :class:`UsageError` where ``on`` cannot be had.
    """
    begun = time.monotonic()
    progress = progress or Silent()
    manifest = _manifest(folder)
    where = _where(manifest, on)
    entries = {entry["variant"]["name"]: entry for entry in manifest["variants"]}
    wanted = _known(list(names) if names else list(entries), entries)
    seed = secrets.randbelow(2**31) if seed is None else seed
    keys = {name: _key(entries[name], level, seed, where) for name in wanted} if cache and not case else {}
    reports = {name: _kept(cache, key) for name, key in keys.items()} if cache else {}
    cached = [name for name, report in reports.items() if report is not None]
    fresh = [name for name in wanted if name not in cached]
    progress.stage("check", len(wanted))
    for name in cached:
        progress.start(name)
        progress.finish(name, "passed before")
    wish = Wish(seed, level, case, command or f"fagen check {shlex.quote(str(folder))} -v", where)
    found = check_variants(folder, fresh, wish, budget=budget, watcher=progress)
    if level == "full" and not case and not where.title:
        found = _with_lines(folder, found, seed, cache, progress)
    for name, verdict in zip(fresh, found, strict=True):
        reports[name] = verdict
        # What time cut short, could not be done here, or failed, is worth another try.
        if cache and name in keys and verdict.verdict != FAILED and not verdict.skipped and not verdict.notes:
            cache.store_verdict(keys[name], verdict.to_json())
    ordered = tuple(report for name in wanted if (report := reports[name]) is not None)
    return CheckReport(ordered, seed, level, time.monotonic() - begun, tuple(cached))


def _with_lines(
    folder: Path, reports: Sequence[VariantReport], seed: int, cache: Cache | None, progress: Progress
) -> list[VariantReport]:
    """``reports`` with the lines that no case ran, but for variants that failed: there is more to mend there first."""
    from .coverage import count_lines  # the rest of the compiler: nothing else here needs it

    names = [report.variant for report in reports if report.verdict != FAILED]
    lines = count_lines(folder, names, seed=seed, cache=cache, progress=progress) if names else {}
    return [
        report.counted(found.total, found.unrun, found.note) if (found := lines.get(report.variant)) else report
        for report in reports
    ]


def _manifest(folder: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def _known(names: list[str], entries: Mapping[str, Any]) -> list[str]:
    unknown = [name for name in names if name not in entries]
    if unknown:
        raise SpecError([Problem(f"no variant {name!r}; there are {', '.join(entries)}") for name in unknown])
    return names


def _where(manifest: Mapping[str, Any], on: str | None) -> Where:
    """Where the module's kernels are to run. Raises :class:`UsageError` where that cannot be as ``on`` asks."""
    target = manifest.get("target", "cpu")
    if target == "cpu" and on is None:
        return Where()
    try:
        where = find_where(target, on, cuda=bool(find_torch().cuda), emulator=str(_ROOT.parent))
    except LookupError as error:
        raise UsageError(Problem(str(error))) from None
    return replace(where, cache=str(locate_cache().root)) if where.emulator else where


def _key(entry: Mapping[str, Any], level: str, seed: int, where: Where) -> str:
    """Of a verdict: what was run, on what, and by which check."""
    return digest(
        {
            "objects": entry["objects"],
            "variant": _without_places(entry["variant"]),
            "tiles": [entry["plan"]["forward"], entry["plan"]["backward"]],
            "check": _check_digest(),
            "where": [where.title, tree_digest([_ROOT / "emulate"], (".py", ".cpp", ".h")) if where.emulator else ""],
            "level": level,
            "seed": seed,
        }
    )


def _without_places(variant: Mapping[str, Any]) -> dict[str, Any]:
    """What a variant is, wherever in the spec it stands."""
    return {
        key: _without_places(value) if isinstance(value, Mapping) else value
        for key, value in variant.items()
        if key not in _PLACES
    }


def _check_digest() -> str:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return digest([tree_digest([_RUNTIME], (".py",)), _COVERAGE.read_text(encoding="utf-8"), torch])


def _kept(cache: Cache, key: str) -> VariantReport | None:
    kept = cache.verdict(key)
    try:
        return None if kept is None else VariantReport.from_json(kept)
    except (KeyError, TypeError, ValueError):
        return None


def _lasting(report: VariantReport) -> dict[str, Any]:
    """A report without what differs from run to run or from place to place."""
    return {name: value for name, value in report.to_json().items() if name not in ("seconds", "command")}


def _problem(report: VariantReport) -> Problem:
    _, _, *lines, repeat = explain(report)
    text = "; ".join(line.strip() for line in lines)
    what = "has a fault" if report.failures[0].measure == "fault" else "computes a wrong number"
    return Problem(f"{report.variant} {what}: {text}", hint=repeat.strip())
