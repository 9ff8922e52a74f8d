"""How commands speak: results on stdout (text, or one JSON value with --json), everything else on stderr."""

from __future__ import annotations

import contextlib
import errno
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import typer

from ..build.progress import Plain, Progress
from ..errors import FagenError, LockError, Problem

INTERRUPTED = 130
TERMINATED = 143
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


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
        if as_json:
            print_json({"ok": False, "exit_code": error.exit_code, "problems": [vars(p) for p in error.problems]})
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        where = f" ({error.filename})" if error.filename else ""
        problem = Problem(
            f"{error.strerror}{where}", hint="make room on the disks of --out, FAGEN_CACHE_DIR and TMPDIR"
        )
        if as_json:
            print_json({"ok": False, "exit_code": LockError.exit_code, "problems": [vars(problem)]})
        typer.echo(str(problem), err=True)
        raise typer.Exit(LockError.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


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
