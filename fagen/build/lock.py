"""One builder at a time per module: an OS lock, which dies with its holder however that dies."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import LockError, Problem


@contextlib.contextmanager
def module_lock(path: Path, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs; it is made if missing and never deleted.

    If another process holds it, ``waiting`` is called once with that process's id (or "?"), then this one waits.
    Raises :class:`LockError` if the file cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise LockError(
            Problem(
                f"the output folder {path.parent.parent.parent} cannot be written: {error.strerror}",
                hint="choose another with --out, or build where you may write",
            )
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting(os.pread(handle, 32, 0).decode("ascii", "replace").strip() or "?")
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
