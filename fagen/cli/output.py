"""How commands speak: results on stdout (text, or one JSON value with --json), everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer

from ..build.progress import Plain, Progress
from ..build.room import is_no_room, no_room
from ..errors import FagenError

INTERRUPTED = 130
TERMINATED = 143


@contextlib.contextmanager
def errors_shown(as_json: bool) -> Iterator[None]:
    """Print a :class:`FagenError` for people and, with --json, for programs, and exit with its code.

    Ctrl-C and SIGTERM end the block with exit codes 130 and 143, after it has cleaned up.
    """

    def terminate(number: int, frame: object) -> NoReturn:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except FagenError as error:
        _show(error, as_json)
    except OSError as error:
        if not is_no_room(error):
            raise
        _show(no_room(error, {}), as_json)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(error: FagenError, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"ok": False, "exit_code": error.exit_code, "problems": [vars(p) for p in error.problems]})
    typer.echo(str(error), err=True)
    raise typer.Exit(error.exit_code) from None


def print_json(value: Any) -> None:
    """One JSON value on stdout."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout, columns as wide as their widest cell; nothing is cut when stdout is a pipe."""
    widths = [max(len(row[i]) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def progress_for_terminal() -> Progress:
    """A bar if stderr is a terminal, else plain lines."""
    if sys.stderr.isatty():
        from .bar import Bar

        return Bar()
    return Plain()
