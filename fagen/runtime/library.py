"""Loads a module's library once a process, and refuses one that this machine cannot run."""

from __future__ import annotations

import hashlib
import platform
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

# Kept on torch.ops, the one place a process has, however many names or copies of a module it imports.
_LOADED = vars(torch.ops).setdefault("_fagen_loaded", (threading.Lock(), {}))
_PATHS: dict[str, Path] = vars(torch.ops).setdefault("_fagen_paths", {})


def load(folder: Path, manifest: Mapping[str, Any], register: Callable[[torch.library.Library], None]) -> None:
    """Load the library of the module in ``folder``, and let ``register`` add to its namespace what is in Python.

    A namespace that is loaded already, also through another copy of the folder, is left as it is: it names one build.
    ``ImportError`` says why a library cannot be loaded. Where ``register`` fails, what it added is taken back, and the
    next import tries again.
    """
    require_torch(manifest)
    require_cpu(manifest)
    lock, loaded = _LOADED
    namespace = manifest["namespace"]
    with lock:
        if loaded.get(namespace) is not None:
            return
        if namespace not in loaded:
            path = folder / manifest["library"]
            require_whole(path, manifest)
            try:
                torch.ops.load_library(str(path))
            except OSError as error:
                raise ImportError(f"fagen module {manifest['name']}: cannot load {path}: {error}") from error
            _PATHS[namespace] = path
            loaded[namespace] = None  # in the process for good: loading a copy of it would end the process
        fragment = torch.library.Library(namespace, "FRAGMENT")
        try:
            register(fragment)
        except BaseException:
            fragment._destroy()
            raise
        loaded[namespace] = fragment


def path_of(namespace: str) -> Path:
    """The file that a loaded namespace came from, whichever copy of the module it was."""
    return _PATHS[namespace]


def require_whole(path: Path, manifest: Mapping[str, Any]) -> None:
    """``ImportError`` where the library is not what the build wrote: to load one cut short would end the process."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ImportError(f"fagen module {manifest['name']}: cannot read {path}: {error.strerror}") from error
    if manifest.get("files", {}).get(path.name, found) != found:
        raise ImportError(
            f"fagen module {manifest['name']}: {path} is not what the build wrote: it is damaged, or was cut short as "
            f"it was copied; build or copy it again"
        )


def require_torch(manifest: Mapping[str, Any]) -> None:
    """``ImportError`` where torch is older than the library's ABI."""
    wanted = manifest["torch"].removeprefix(">=")
    if _version(torch.__version__) < _version(wanted):
        raise ImportError(f"fagen module {manifest['name']} needs torch {wanted} or newer, found {torch.__version__}")


def require_cpu(manifest: Mapping[str, Any]) -> None:
    """``ImportError`` where the CPU is another, or lacks an instruction set that the kernels were compiled for."""
    name, isa, spec_file = manifest["name"], manifest["isa"], manifest["spec"]["file"]
    if isa["machine"] != platform.machine():
        raise ImportError(
            f"fagen module {name} was built for {isa['machine']}, and this machine is {platform.machine()}: "
            f"build {spec_file} here"
        )
    present = cpu_features()
    missing = [each for each in isa["features"] if _plain(each) not in present] if present is not None else []
    if missing:
        raise ImportError(
            f"fagen module {name} was built for a CPU with {', '.join(isa['features'])} (isa: {isa['name']}), and this "
            f"one lacks {', '.join(missing)}: build {spec_file} here, or set a lower isa: in it"
        )


def cpu_features(path: Path = Path("/proc/cpuinfo")) -> frozenset[str] | None:
    """The CPU's features in plain spelling (``avx512bf16``), or None where the system does not list them.

    Where it does not, the library's own check, made before it first runs a kernel, still stands.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return None
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(_plain(word) for word in line[1].split()) if line else None


def _plain(feature: str) -> str:
    """`avx512_bf16` and `avx512bf16`, `sse4.2` and `sse4_2` are the same."""
    return re.sub(r"[^a-z0-9]", "", feature.lower())


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:2])
