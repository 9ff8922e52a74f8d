"""What decides that an object is the right one: content alone, never times, paths or the order of anything.

Headers are read once, into memory. Their hash and the copy that the compiler is given come from that one reading, so
an edit in the middle of a build cannot put a wrong object under a right key.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1  # part of every key: raise it when what a key means changes

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)


@dataclass(frozen=True)
class Headers:
    """The header files of one include folder: name relative to it (with ``/``) -> bytes."""

    files: Mapping[str, bytes]

    def used_by(self, source: bytes) -> tuple[str, ...]:
        """The names, sorted, of all headers that ``source`` includes, directly or through others.

        Conditional includes count, so the result may hold more than one compilation reads, never less.
        """
        used: set[str] = set()
        waiting = [("", source)]
        while waiting:
            folder, text = waiting.pop()
            for delimiter, raw in _INCLUDE.findall(text):
                name = self._resolve(folder, raw.decode("utf-8", "surrogateescape"), quoted=delimiter == b'"')
                if name is not None and name not in used:
                    used.add(name)
                    waiting.append((posixpath.dirname(name), self.files[name]))
        return tuple(sorted(used))

    def write(self, folder: Path) -> None:
        """Copy them all below ``folder``."""
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def _resolve(self, folder: str, name: str, *, quoted: bool) -> str | None:
        beside = posixpath.normpath(posixpath.join(folder, name))
        if quoted and beside in self.files:
            return beside
        name = posixpath.normpath(name)
        return name if name in self.files else None


def read_headers(folder: Path) -> Headers:
    """Every file below an include folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return Headers({path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})


def object_key(source: str, flags: Iterable[str], headers: Headers, *, compiler: str, extra: Iterable[str] = ()) -> str:
    """The key of the object that compiling ``source`` with ``flags`` gives.

    ``compiler`` is :attr:`Compiler.identity`; ``extra`` names whatever else the object depends on (torch's version for
    the host unit). The order of flags counts, since it counts for a compiler.
    """
    data = source.encode()
    return digest(
        {
            "format": FORMAT,
            "source": source,
            "flags": list(flags),
            "headers": {name: hashlib.sha256(headers.files[name]).hexdigest() for name in headers.used_by(data)},
            "compiler": compiler,
            "extra": list(extra),
        }
    )


def digest(value: Any) -> str:
    """The hash, in hex, of a JSON-able value; dicts are equal whatever order they were filled in."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def tree_digest(folders: Iterable[Path], suffixes: tuple[str, ...]) -> str:
    """The hash of all files with these suffixes below these folders, by relative name and content."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in suffixes and "__pycache__" not in path.parts and path.is_file():
                data = path.read_bytes()
                total.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode())
                total.update(data)
        total.update(b"\0folder\0")
    return total.hexdigest()
