"""`fagen bench`: measure a published module beside torch, in one run."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import typer

from ..bench.report import BenchReport, draw, summary
from ..bench.run import Options, bench
from ..build.failure import shown_path
from ..errors import FagenError, Problem, UsageError
from .listing import find_module, read_module
from .output import print_json, print_table
from .size import parse_size


def bench_module(
    what: str,
    out: Path,
    variants: Sequence[str],
    sizes: Sequence[str],
    *,
    backward: bool,
    flex: bool,
    rounds: int,
    write: Path | None,
    plot: Path | None,
    at_least: Sequence[str],
    as_json: bool,
) -> None:
    """Measure the module ``what`` and print, write and draw what came out.

    Exits with 1, after all that, if a ratio of ``at_least`` is not reached.
    """
    limits = dict(_limit(text) for text in at_least)
    folder = find_module(what, out)
    manifest = read_module(folder)
    if manifest.get("device", "cpu") != "cpu":
        raise UsageError(
            Problem(
                f"{shown_path(folder)} is built for {manifest['target']}; only modules for the CPU are measured yet"
            )
        )
    known = [entry["variant"]["name"] for entry in manifest["variants"]]
    for name in variants:
        if name not in known:
            raise typer.BadParameter(f"no variant {name}; there are {', '.join(known)}", param_hint="--variant")
    options = Options(variants=tuple(variants), backward=backward, flex=flex, rounds=rounds)
    if sizes:
        options = replace(options, sizes=tuple(parse_size(text) for text in sizes))
    report = bench(import_module(folder)._module, options, lambda line: typer.echo(line, err=True))
    if write is not None:
        report.write_json(write)
    if plot is not None:
        draw(report, plot)
    short = report.short_of(limits)
    _show(report, short, as_json=as_json)
    if short:
        raise typer.Exit(FagenError.exit_code)


def _limit(text: str) -> tuple[str, float]:
    """`forward=1.5` as ("forward", 1.5)."""
    what, _, number = text.partition("=")
    try:
        if what in ("forward", "backward", "cell") and math.isfinite(limit := float(number)):
            return what, limit
    except ValueError:
        pass
    raise typer.BadParameter(
        f"{text!r}: expected forward=, backward= or cell= and a ratio, as forward=1.5", param_hint="--at-least"
    )


def import_module(folder: Path) -> ModuleType:
    """The published module in ``folder``, imported wherever it lies, under a name that no other package has."""
    name = f"_fagen_benched_{folder.resolve().name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _show(report: BenchReport, short: Sequence[str], *, as_json: bool) -> None:
    for line in short:
        typer.echo(f"error: {line}", err=True)
    if as_json:
        print_json({**report.to_json(), "short_of": short})
        return
    head, *rows = report.rows()
    print_table(head, rows)
    for line in summary(report):
        typer.echo(line)
