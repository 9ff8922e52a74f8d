"""`fagen render`: the C++ of a spec, without compiling it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer

from ..build.planning import plan_spec, render_plan
from ..errors import LockError, Problem, SpecError
from ..render import Source
from ..spec import expand, load
from .output import print_json


def render_spec(spec_path: Path, names: Sequence[str], out: Path | None, *, as_json: bool) -> None:
    """Print the sources of the named variants (all if none is named), or write them to the folder ``out``."""
    spec = load(spec_path)
    variants = expand(spec)
    known = [variant.name for variant in variants]
    for name in names:
        if name not in known:
            raise SpecError(Problem(f"no variant {name}", path=str(spec_path), hint=f"there are {', '.join(known)}"))
    wanted = [variant for variant in variants if not names or variant.name in names]
    sources = [source for plan in plan_spec(spec, wanted) for source in render_plan(plan, spec.path)]
    if out is not None:
        _write(sources, out)
    if as_json:
        print_json([vars(source) | {"flags": list(source.flags)} for source in sources])
    elif out is not None:
        typer.echo(f"wrote {len(sources)} files to {out}")
    else:
        typer.echo("\n".join(source.text for source in sources), nl=False)


def _write(sources: Sequence[Source], out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        for source in sources:
            (out / source.name).write_text(source.text, encoding="utf-8")
    except OSError as error:
        raise LockError(
            Problem(f"{out} cannot be written: {os.strerror(error.errno or 0)}", hint="see --out")
        ) from None
