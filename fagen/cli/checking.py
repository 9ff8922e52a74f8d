"""`fagen check`: hold a published module to its oracle again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ..build.check import check_folder
from ..build.published import damaged_file
from ..errors import CheckError, FagenError, Problem, SpecError
from ..runtime.check.report import FAILED, table
from ..runtime.check.where import DEVICE, EMULATOR
from .listing import find_module, read_module
from .output import print_json, progress_for_terminal


def check_again(
    what: str,
    out: Path,
    names: Sequence[str],
    case: str | None,
    seed: int | None,
    on: str | None,
    *,
    full: bool,
    as_json: bool,
) -> None:
    """Check the module ``what``, print the report, and exit with 6 if a variant computes a wrong number."""
    if on not in (None, DEVICE, EMULATOR):
        raise typer.BadParameter(f"expected {DEVICE} or {EMULATOR}; got {on!r}", param_hint="--on")
    folder = find_module(what, out)
    manifest = read_module(folder)
    damaged = damaged_file(folder, manifest)
    if damaged is not None:
        raise FagenError(Problem(f"{folder / damaged} is not what the build wrote", hint="build the module again"))
    if case is not None:
        _require_case(case, names, manifest)
    progress = progress_for_terminal()
    try:
        report = check_folder(
            folder,
            names=names or None,
            level="full" if full else "auto",
            seed=seed,
            case=case,
            on=on,
            progress=progress,
        )
    finally:
        progress.close()
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(table(report))
    if report.verdict == FAILED:
        raise typer.Exit(CheckError.exit_code)


def _require_case(case: str, names: Sequence[str], manifest: Mapping[str, Any]) -> None:
    """A mistyped case is a mistake of the command line, not a kernel's."""
    from ..runtime.check.cases import Tiling, named

    for entry in manifest["variants"]:
        if not names or entry["variant"]["name"] in names:
            try:
                named(case, Tiling.of(entry["plan"]))
            except KeyError as error:
                raise SpecError(Problem(f"{entry['variant']['name']}: {error.args[0]}")) from None
