"""What somebody put into a published folder: the next build carries it over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .published import MANIFEST, read_manifest

_FOLDERS = ("runtime", "sources", "ptx")  # filled by builds; so much is known without a manifest


def carry_over(old: Path, new: Path) -> tuple[str, ...]:
    """Put into the folder ``new`` whatever in ``old`` no build wrote, and return the names it has there.

    Files are linked rather than copied where they can be: they may be large, or open. One whose place is taken by what
    the build wrote goes to the top of the folder, with ``.kept`` behind its name.
    """
    return tuple(_add(old / name, new, name) for name in sorted(_others(old, new)))


def _others(old: Path, new: Path) -> Iterator[str]:
    files = (read_manifest(old) or {}).get("files")
    for folder, inner, names in os.walk(old):
        at = Path(folder).relative_to(old)
        inner[:] = [name for name in inner if name != "__pycache__"]
        links = [name for name in inner if (Path(folder) / name).is_symlink()]
        for name in [*names, *links]:
            path = PurePosixPath(at / name)
            if str(path) == MANIFEST:
                continue
            if isinstance(files, dict):
                ours = str(path) in files
            else:
                ours = path.parts[0] in _FOLDERS or path.match("library_*.so") or (new / path).is_file()
            if not ours:
                yield str(path)


def _add(source: Path, new: Path, name: str) -> str:
    number = 1
    place = new / name
    while not _is_free(place, new):
        name = f"{name.replace('/', '_')}.kept" if number == 1 else f"{name.rstrip('0123456789')}{number}"
        place = new / name
        number += 1
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError:  # the file system has no links, or it is another's
        shutil.copy2(source, place, follow_symlinks=False)
    return name


def _is_free(place: Path, top: Path) -> bool:
    """Whether a file can be put there."""
    if os.path.lexists(place):
        return False
    return all(not os.path.lexists(parent) or parent.is_dir() for parent in place.parents if parent.is_relative_to(top))
