"""`fagen bench`: measure a published module beside torch, in one run."""

from __future__ import annotations

from pathlib import Path

import typer

from ..bench.command import Wish, measure
from .listing import find_module, read_module


def bench_module(what: str, out: Path, wish: Wish) -> None:
    """Measure the module ``what`` and print, write and draw what came out.

    Exits with 1, after all that, if a ratio that is asked for is not reached.
    """
    folder = find_module(what, out)
    if code := measure(folder, read_module(folder), wish, typer.echo):
        raise typer.Exit(code)
