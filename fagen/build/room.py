"""A disk that is full, or a quota used up: said the same way whoever finds it."""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..errors import LockError, Problem
from .compile_unit import NO_ROOM, no_room_line


def require_room(output: str) -> None:
    """Raise OSError if this output of a compiler, a linker or ninja says that a disk is full."""
    line = no_room_line(output)
    if line is not None:
        raise OSError(errno.ENOSPC, line)


def is_no_room(error: OSError) -> bool:
    """Whether it is this that the error says."""
    return error.errno in NO_ROOM


def no_room(error: OSError, places: Mapping[str, Path]) -> LockError:
    """What to tell the user. ``places`` are folders that are written, each under the name of what chooses it."""
    free = [f"{_free(path)} in {path} ({name})" for name, path in {**places, "TMPDIR": _temporary()}.items()]
    return LockError(
        Problem(
            error.strerror or str(error),
            path=None if error.filename is None else str(error.filename),
            hint=f"make room, then repeat the command: what was compiled is kept. Free now: {', '.join(free)}",
        )
    )


def _temporary() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written: Python tries each of them
        return Path("/tmp")


def _free(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    return f"{shutil.disk_usage(path).free / 2**20:,.1f} MiB"
