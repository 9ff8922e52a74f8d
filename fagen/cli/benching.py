"""`fagen bench`: a published module's speed beside torch's, as a table, JSON and a picture."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from ..bench.report import BenchReport, draw, summary
from ..bench.run import Options, Size, bench
from ..errors import FagenError, Problem
from ..runtime.module import Module
from .listing import find_module
from .output import print_json, print_table

_SIZE = re.compile(r"(\d+)x(\d+)(?:/(\d+))?x(\d+)(?:x(\d+))?")


def run_bench(
    what: str,
    out: Path,
    names: Sequence[str],
    sizes: Sequence[str],
    *,
    backward: bool,
    flex: bool,
    rounds: int,
    png: Path | None,
    to: Path | None,
    as_json: bool,
) -> None:
    """Measure and print; ``to`` and ``png`` are files to write, checked before anything is measured."""
    module = load_module(find_module(what, out))
    for name in names:
        if name not in module.kernels:
            raise FagenError(Problem(f"no variant {name}", hint=f"there are {', '.join(module.kernels)}"))
    for path in (to, png):
        if path is not None and not path.absolute().parent.is_dir():
            raise FagenError(Problem(f"{path} cannot be written: {path.absolute().parent} is no folder"))
    chosen = Options(
        sizes=tuple(parse_size(text) for text in sizes) or Options().sizes,
        variants=tuple(names),
        backward=backward,
        flex=flex,
        rounds=rounds,
    )
    report = bench(module, chosen, progress=lambda line: typer.echo(line, err=True))
    if to is not None:
        report.write_json(to)
    if png is not None:
        draw(report, png)
    _show(report, as_json=as_json)


def parse_size(text: str) -> Size:
    """``BxHxS``, ``BxH/HkxS`` or ``BxHxSqxSkv``. Raises FagenError for anything else."""
    match = _SIZE.fullmatch(text)
    if match is None:
        hint = "BxHxS as 1x8x1024; grouped heads 1x32/8x1024; unequal lengths 1x8x128x4096"
        raise FagenError(Problem(f"no size: {text!r}", hint=hint))
    batch, heads, kv_heads, q_len, kv_len = (int(part) if part else None for part in match.groups())
    assert batch is not None and heads is not None and q_len is not None
    size = Size(batch, heads, kv_heads or heads, q_len, kv_len or q_len)
    if not all((size.batch, size.heads, size.kv_heads, size.q_len, size.kv_len)) or size.heads % size.kv_heads:
        raise FagenError(Problem(f"no size to measure: {text!r}", hint="nothing may be 0; H is a multiple of Hk"))
    return size


def load_module(folder: Path) -> Module:
    """Import a published folder, wherever it is."""
    name = f"fagen_published_{folder.absolute().name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    loaded = package._module
    return loaded  # of the folder's own copy of the class


def _show(report: BenchReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
        return
    head, *rows = report.rows()
    print_table(head, rows)
    peaks = ", ".join(f"{dtype} {rate / 1e9:.0f}" for dtype, rate in report.peak.items())
    typer.echo(f"\n{report.machine}, {report.threads} threads, torch {report.torch}; peak GFLOP/s: {peaks}")
    for line in summary(report):
        typer.echo(line)
