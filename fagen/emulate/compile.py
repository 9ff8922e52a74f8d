"""The machine and translated programs, by the host's C++ compiler, kept by what they were made from."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .faults import EmulationError
from .places import Places, Said
from .ptx.model import Module
from .ptx.parse import parse
from .ptx.tokens import PtxError
from .translate.program import Translation, translate

_MACHINE = Path(__file__).with_name("machine")
_FLAGS = (
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fwrapv",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
)
# Programs are long and run briefly; the machine is compiled once.
_PROGRAM_FLAGS = (*_FLAGS, "-O1", "-w")
_MACHINE_FLAGS = (*_FLAGS, "-O3")


@dataclass(frozen=True)
class Entry:
    """A kernel of a program: its index, and what it is launched with. ``param_types`` are as the PTX declares them;
    ``cluster`` and ``max_registers`` what its directives say, () and 0 if they do not."""

    name: str
    index: int
    param_offsets: tuple[int, ...]
    param_sizes: tuple[int, ...]
    param_types: tuple[str, ...]
    param_bytes: int
    static_shared: int
    max_threads: int
    max_registers: int
    cluster: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Loaded:
    """A program in memory: ``handle`` is its `Program*`."""

    handle: int
    target: int
    entries: dict[str, Entry]
    instructions: tuple[Said, ...]
    library: ctypes.CDLL


def default_cache() -> Path:
    """Where compiled programs are kept: FAGEN_CACHE_DIR's `emulate`, else the user's cache folder."""
    root = os.environ.get("FAGEN_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "fagen"
    )
    return Path(root) / "emulate"


@cache
def machine() -> ctypes.CDLL:
    """The machine's library, its functions for programs to find."""
    sources = sorted(_MACHINE.glob("*.cpp"))
    headers = sorted(_MACHINE.glob("*.h"))
    library = _compiled("machine", sources, [*sources, *headers], _MACHINE_FLAGS)
    loaded = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    loaded.fagen_launch.restype = ctypes.c_void_p
    loaded.fagen_launch.argtypes = [ctypes.c_void_p]
    loaded.fagen_free.argtypes = [ctypes.c_void_p]
    loaded.fagen_encode_tiled.restype = ctypes.c_int32
    return loaded


_programs: dict[str, Loaded] = {}


def load(ptx: str) -> Loaded:
    """The program of a PTX text. Raises EmulationError if there is something in it that is not built."""
    key = hashlib.sha256(ptx.encode()).hexdigest()
    if key not in _programs:
        _programs[key] = _load(ptx)
    return _programs[key]


def _translated(ptx: str) -> tuple[Module, tuple[str, ...], Translation]:
    collects = gc.isenabled()
    gc.disable()  # a million small objects, all of which stay until the end
    try:
        module = parse(ptx)
        names = tuple(name for name, function in module.functions.items() if function.entry)
        return module, names, translate(module, names)
    except PtxError as error:
        raise EmulationError(str(error)) from None
    finally:
        if collects:
            gc.enable()


def _load(ptx: str) -> Loaded:
    module, names, translation = _translated(ptx)
    machine()
    headers = [_MACHINE / name for name in ("thread.h", "formats.h", "integers.h", "scalar.h")]
    with tempfile.TemporaryDirectory(prefix="fagen-emulate-") as folder:
        source = Path(folder) / "program.cpp"
        source.write_text(translation.text)
        path = _compiled("program", [source], [source, *headers], _PROGRAM_FLAGS)
    library = ctypes.CDLL(str(path))
    library.fagen_program.restype = ctypes.c_void_p
    places = Places(module)
    instructions = [
        places.said(each.text, each.place, module.functions[name].lines)
        for name in names
        for each in translation.of(name)
    ]
    entries = {
        name: Entry(
            name,
            index,
            tuple(kernel.param_offsets),
            tuple(kernel.param_sizes),
            tuple(p.type if p.count is None else "struct" for p in kernel.function.parameters),
            kernel.param_bytes,
            kernel.shared_bytes,
            translation.max_threads[name],
            kernel.function.directives.get("maxnreg", (0,))[0],
            kernel.function.directives.get("reqnctapercluster", ()),
            translation.blocks[name],
        )
        for index, (name, kernel) in enumerate(translation.kernels.items())
    }
    return Loaded(library.fagen_program(), translation.target, entries, tuple(instructions), library)


def _compiled(kind: str, sources: Sequence[Path], inputs: Sequence[Path], flags: Sequence[str]) -> Path:
    """A shared library of ``sources``, found in the cache by the hash of ``inputs``, flags and compiler."""
    compiler = _compiler()
    digest = hashlib.sha256("\0".join([*compiler, *flags]).encode())
    for path in inputs:
        digest.update(path.read_bytes())
        digest.update(b"\0")
    target = default_cache() / f"{kind}-{digest.hexdigest()[:32]}.so"
    if target.exists():
        os.utime(target)
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".so", delete=False) as held:
        made = Path(held.name)
    try:
        command = [compiler[0], *flags, f"-I{_MACHINE.parent}", *map(str, sources), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise EmulationError(f"the C++ of a {kind} did not compile:\n{done.stderr[:4000]}")
        os.replace(made, target)  # complete or not there at all, whoever else compiles the same
    finally:
        made.unlink(missing_ok=True)
    return target


@cache
def _compiler() -> tuple[str, str]:
    """The compiler and its version line."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
            return path, version.splitlines()[0]
    raise EmulationError("the emulator needs a C++ compiler: install g++ or clang++, or set CXX")
