"""`fagen build`: one module after another, progress on stderr, what was made on stdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ..build import BuildResult, build
from ..build.failure import shown_path
from ..build.published import LEVELS
from ..runtime.check.report import place_in_words
from .output import print_json, progress_for_terminal


def build_all(specs: Sequence[Path], out: Path, check: str, jobs: int | None, *, force: bool, as_json: bool) -> None:
    """Build every spec; the first error ends it (what was published before stays)."""
    if check not in LEVELS:
        raise typer.BadParameter(f"expected one of auto, full, off; got {check!r}", param_hint="--check")
    results = []
    for spec in specs:
        result = build(spec, out=out, check=check, jobs=jobs, force=force, progress=progress_for_terminal())
        results.append(result)
        if not as_json:
            typer.echo(_summary(result))
    if as_json:
        print_json({"ok": True, "builds": [dict(result.report) for result in results]})


def _summary(result: BuildResult) -> str:
    place = shown_path(result.folder)
    told = "".join(f"\n  warning: {warning}" for warning in result.report.get("warnings", []))
    if result.up_to_date:
        return f"{place} is up to date: compiled nothing ({result.seconds:.2f} s){told}"
    made, cached = len(result.compiled), len(result.cached)
    units = f"{made} unit{'s' * (made != 1)} compiled, {cached} from the cache"
    text = f"{place}: {units}; {result.seconds:.1f} s"
    if made:
        peak = max(result.report["units"][label]["peak_mb"] for label in result.compiled)
        text += f", at most {peak:.0f} MiB a compiler"
    text += f"\n  check: {_verdict(result.report['check'])}{told}"
    for entry in result.report["skipped"]:
        text += f"\n  left out: {entry['name']}, which waits for {', '.join(entry['waits_for'])}"
    return text


def _verdict(check: Mapping[str, Any] | None) -> str:
    if check is None:
        return "off"
    where = f" ({place_in_words(check['on'])})" if check.get("on") else ""
    text = f"{check['verdict']}{where}; {check['killed']} of {check['mutants']} mutants told apart"
    if check["unrun"]:
        text += f"; no case ran {check['unrun']} lines of kernels (see `unrun` in manifest.json)"
    slow = check["verdict"] == "partial" and check["level"] == "auto"
    return text + ("; `--check full` takes the time it needs" if slow else "")
