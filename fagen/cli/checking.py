"""`fagen check`: hold a published module to its oracle again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from ..check import check_folder
from ..errors import CheckError
from ..runtime.check.report import FAILED, table
from .listing import find_module, read_module
from .output import print_json, progress_for_terminal


def check_again(
    what: str, out: Path, names: Sequence[str], case: str | None, seed: int | None, *, full: bool, as_json: bool
) -> None:
    """Check the module ``what``, print the report, and exit with 6 if a variant computes a wrong number."""
    folder = find_module(what, out)
    read_module(folder)
    progress = progress_for_terminal()
    try:
        report = check_folder(
            folder, names=names or None, level="full" if full else "auto", seed=seed, case=case, progress=progress
        )
    finally:
        progress.close()
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(table(report))
    if report.verdict == FAILED:
        raise typer.Exit(CheckError.exit_code)
