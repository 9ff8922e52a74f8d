"""What a published folder says about itself: its manifest, and whether it is whole and what a build would make now."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..runtime.cards import cards
from ..runtime.check.where import EMULATOR
from ..toolchain import find_torch

MANIFEST = "manifest.json"
LEVELS = {"off": 0, "auto": 1, "full": 2}  # of checking; a module checked more than asked is good enough


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest in ``folder``, or None if there is none that can be read."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and "fagen" in manifest else None


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write it, with the digests of all other files of the folder under ``files``."""
    text = json.dumps({**manifest, "files": file_digests(folder)}, indent=1, ensure_ascii=True, allow_nan=False)
    (folder / MANIFEST).write_text(text + "\n", encoding="ascii")


def file_digests(folder: Path) -> dict[str, str]:
    """Name -> SHA-256 of every file below ``folder`` but its manifest and what Python caches there."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path != folder / MANIFEST
    }


def is_rendered(folder: Path) -> bool:
    """Whether a build made the folder, by the first line of its __init__.py: that holds without a manifest, too."""
    try:
        with (folder / "__init__.py").open(encoding="utf-8") as file:
            return "fused attention, rendered by fagen from " in file.readline()
    except (OSError, ValueError):
        return False


def damaged_file(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """The first file that is not what the build wrote, if any; of a manifest without digests nothing is known."""
    for name, digest in manifest.get("files", {}).items():
        try:
            found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            return str(name)
        if found != digest:
            return str(name)
    return None


def is_current(folder: Path, inputs: str, check: str) -> bool:
    """Whether ``folder`` holds, undamaged, what these inputs give, checked at least as much as ``check`` asks.

    What only the emulator has run is not, once there is a card that can.
    """
    manifest = read_manifest(folder)
    if manifest is None or manifest.get("name") != folder.name:  # a copy under another name is nobody's module
        return False
    build = manifest.get("build")
    if not isinstance(build, dict) or not isinstance(manifest.get("files"), dict) or build.get("inputs") != inputs:
        return False
    if LEVELS.get(build.get("check", ""), -1) < LEVELS[check]:
        return False
    if check != "off" and (manifest.get("check") or {}).get("on") == EMULATOR and _can_run(manifest["target"]):
        return False
    return damaged_file(folder, manifest) is None


def warnings(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """What users should know of a manifest's variants: kernels for cards whose registers did not suffice, or whose
    products wait for each other; and a tuning file that is of no use."""
    entries = list(entries)
    tuning = [problem for entry in entries if (problem := entry.get("plan", {}).get("why", {}).get("tuning"))]
    kernels = [(entry, kernel, taken) for entry in entries for kernel, taken in entry.get("resources", {}).items()]
    spilled = [
        f"{entry['variant']['name']}: {kernel} spills {taken['spill_stores']} bytes of a thread's registers and reads "
        f"{taken['spill_loads']} back, which is slow; tiles smaller than "
        f"{{q: {entry['plan']['forward']['tile_q']}, kv: {entry['plan']['forward']['tile_kv']}}} take fewer registers"
        for entry, kernel, taken in kernels
        if taken["spill_stores"] or taken["spill_loads"]
    ]
    return (
        list(dict.fromkeys(tuning))
        + spilled
        + [
            f"{entry['variant']['name']}: products of {kernel} wait for each other, which is slow: "
            f"{taken['serialized']}"
            for entry, kernel, taken in kernels
            if taken.get("serialized")
        ]
    )


def _can_run(target: str) -> bool:
    """Whether there is a card that runs kernels for ``target``, and a torch that can use it."""
    return any(card.runs(target) for card in cards()) and bool(find_torch().cuda)


def find_current(out: Path, inputs: str, check: str) -> Path | None:
    """The published folder below ``out`` that these inputs give, if it is current; the name need not be known."""
    needle = inputs.encode()
    for path in sorted(out.glob(f"*/{MANIFEST}")):
        try:
            if needle in path.read_bytes() and is_current(path.parent, inputs, check):
                return path.parent
        except OSError:
            continue
    return None
