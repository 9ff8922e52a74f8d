"""Compiled objects and check verdicts, kept by the hash of what made them, shared by every build of this user.

An entry is the object ``<key>.o`` (with ``<key>.gcno`` if it counts lines; with ``<key>.ptx`` and ``<key>.txt``, what
the compiler said, if it is CUDA) and, written after it, ``<key>.json`` with hashes, time and peak memory. All get there
by rename, so a reader sees a whole entry or none; one cut short by a power failure fails its hashes and counts as none.
Nothing is written by a lookup.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import LockError, Problem
from .compile_unit import put, read_entry

_LIMIT_BYTES = 2 << 30
_ABANDONED_SECONDS = 3600.0
_BESIDE = (".gcno", ".ptx", ".txt")


@dataclass(frozen=True)
class Cost:
    """What one compilation took: seconds of wall time and peak memory in MiB."""

    seconds: float
    peak_mb: float


@dataclass(frozen=True)
class Entry:
    """A compiled object, the files kept beside it by suffix, and what compiling it took."""

    data: bytes
    beside: Mapping[str, bytes]
    cost: Cost


class Cache:
    """The folder that holds them. Creating one touches no file."""

    def __init__(self, root: Path):
        self.root = root

    def object_path(self, key: str) -> Path:
        """Where the object of ``key`` is, or will be."""
        return self.root / "objects" / key[:2] / f"{key}.o"

    def lookup(self, key: str, beside: Iterable[str] = ()) -> Entry | None:
        """The object of ``key`` and the files of these suffixes beside it, if all are there and whole.

        Their bytes: the files may be trimmed at any time.
        """
        found = read_entry(self.object_path(key), beside)
        if found is None:
            return None
        record, data, contents = found
        return Entry(data, contents, Cost(record["seconds"], record["peak_mb"]))

    def touch(self, keys: Iterable[str]) -> None:
        """Mark objects as used now, so that :meth:`trim` keeps them."""
        for key in keys:
            with contextlib.suppress(OSError):
                os.utime(self.object_path(key))

    def verdict(self, key: str) -> dict[str, Any] | None:
        """The check report stored under ``key``, if any."""
        try:
            value = json.loads((self.root / "verdicts" / key[:2] / f"{key}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def store_verdict(self, key: str, report: Mapping[str, Any]) -> None:
        """Keep a check report. A cache that cannot be written keeps none: the next build checks again."""
        path = self.root / "verdicts" / key[:2] / f"{key}.json"
        try:
            write_atomically(path, json.dumps(report).encode())
        except OSError:
            return

    def history(self) -> dict[str, Cost]:
        """What compiling each named unit took when it was last compiled."""
        try:
            record = json.loads((self.root / "history.json").read_bytes())
            return {name: Cost(float(seconds), float(peak_mb)) for name, (seconds, peak_mb) in record.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def remember(self, costs: Mapping[str, Cost]) -> None:
        """Add to the history; it only steers memory budgets, so an unwritable cache goes without."""
        known = {name: (cost.seconds, cost.peak_mb) for name, cost in {**self.history(), **costs}.items()}
        try:
            write_atomically(self.root / "history.json", json.dumps(known, sort_keys=True).encode())
        except OSError:
            return

    def require_writable(self) -> None:
        """Raise :class:`LockError` unless objects can be added."""
        try:
            _make_private(self.root / "objects")
            with tempfile.TemporaryFile(dir=self.root / "objects"):
                pass
        except OSError as error:
            raise LockError(
                Problem(
                    f"the object cache {self.root} cannot be written: {error.strerror}",
                    hint="set FAGEN_CACHE_DIR to a folder that you can write",
                )
            ) from None

    def trim(self, limit_bytes: int = _LIMIT_BYTES) -> None:
        """Delete the objects longest unused until the cache is below its limit, and what killed compilers left.

        So are the emulator's programs, which have as much room again.
        """
        for path in (self.root / "objects").glob("*/.tmp-*"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink()
        _keep_newest((self.root / "objects").glob("*/*.o"), limit_bytes)
        _keep_newest((self.root / "emulate").glob("*.so"), limit_bytes)


def locate_cache(environ: Mapping[str, str] | None = None) -> Cache:
    """The cache that ``FAGEN_CACHE_DIR`` names, else ~/.cache/fagen, else a private folder of this user in /tmp.

    The last is for accounts without a usable home. It raises :class:`LockError` if another user owns that folder.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("FAGEN_CACHE_DIR", "").strip()
    if named:
        return Cache(Path(named).expanduser().absolute())
    home = environ.get("HOME", "")
    if os.path.isabs(home) and _could_write(Path(home) / ".cache" / "fagen"):
        return Cache(Path(home) / ".cache" / "fagen")
    return Cache(_private_folder(Path(tempfile.gettempdir()) / f"fagen-{os.getuid()}"))


def write_atomically(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` so that a reader sees the old file or the new one, never a part."""
    _make_private(path.parent)
    put(path, data)


def _keep_newest(paths: Iterable[Path], limit_bytes: int) -> None:
    """Delete the files longest unused, with what is beside them, until the rest is within the limit."""
    entries = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        size = status.st_size
        for suffix in _BESIDE:
            with contextlib.suppress(OSError):
                size += path.with_suffix(suffix).stat().st_size
        entries.append((status.st_mtime, size, path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            return
        for suffix in (".json", *_BESIDE, path.suffix):
            path.with_suffix(suffix).unlink(missing_ok=True)
        total -= size


def _make_private(folder: Path) -> None:
    """Make a folder and those above it that are missing, each closed to others (mkdir does so for the last alone)."""
    for each in [*reversed(folder.parents), folder]:
        if not each.is_dir():
            each.mkdir(mode=0o700, exist_ok=True)


def _could_write(folder: Path) -> bool:
    """Whether ``folder`` is there already (then a cache that is only read will do), or can be made."""
    while not folder.exists():
        if folder == folder.parent:
            return False
        folder = folder.parent
        if folder.exists():
            return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    return folder.is_dir()


def _private_folder(folder: Path) -> Path:
    if folder.exists():
        status = folder.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise LockError(
                Problem(
                    f"HOME is not usable, and {folder} is not a folder that you alone can write",
                    hint="set FAGEN_CACHE_DIR to a folder of your own",
                )
            )
    return folder
