"""Built modules on the emulator: their own host code launches, and the launches run here, on CPU tensors.

with driver.use(module):
    o = module.causal_d64(q, k, v)
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .compile import Loaded, load, machine
from .faults import EmulationError
from .launch import COMPLETIONS, Memory, run


class _Buffer(ctypes.Structure):
    """fagen::host::Buffer of templates/include/fagen/host/driver.h."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_uint64),
        ("bytes", ctypes.c_int64),
        ("writable", ctypes.c_int32),
    ]


class _Request(ctypes.Structure):
    """fagen::host::Launch, likewise."""

    _fields_ = [
        ("unit", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("param_count", ctypes.c_int32),
        ("buffer_count", ctypes.c_int32),
        ("params", ctypes.POINTER(ctypes.c_void_p)),
        ("param_bytes", ctypes.POINTER(ctypes.c_int64)),
        ("buffers", ctypes.POINTER(_Buffer)),
        ("cluster", ctypes.c_uint32 * 3),
        ("early", ctypes.c_int32),
    ]


_Callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Request), ctypes.c_void_p, ctypes.c_int64)


class _Table(ctypes.Structure):
    """fagen::host::Emulator of templates/include/fagen/host/emulated.h."""

    _fields_ = [("launch", _Callback), ("encode_tiled", ctypes.c_void_p)]


_BRANCH = re.compile(r"(@\S+\s+)?bra\b")
_PREFIX = "fagen: emulated launch: "  # of the error that the host code makes of a fault


class Emulator:
    """What runs the launches of one module.

    ``completions``, ``seed`` and ``checks`` are as in :func:`fagen.emulate.launch` and hold for the launches to come.
    ``launches`` counts those that were run; ``executed`` has for each unit ("causal_d64_forward") how often a thread
    came to a line of its PTX. ``fault`` is what the last launch failed with.
    """

    def __init__(self, folder: Path, *, completions: str = "random", seed: int = 0, checks: bool = True):
        if completions not in COMPLETIONS:
            raise ValueError(f"completions: expected one of {', '.join(COMPLETIONS)}, found {completions!r}")
        self.folder = folder
        self.completions, self.seed, self.checks = completions, seed, checks
        self.launches = 0
        self.executed: dict[str, dict[int, int]] = {}
        self.fault: Exception | None = None
        self._programs: dict[str, Loaded] = {}
        encode = ctypes.cast(machine().fagen_encode_tiled, ctypes.c_void_p)
        self.table = _Table(_Callback(self._answer), encode)

    def prepare(self, unit: str) -> None:
        """Translate and compile a unit's PTX, if that was not done before."""
        self._program(unit)

    def order(self, completions: str, seed: int) -> None:
        """How the launches to come are carried out."""
        self.completions, self.seed = completions, seed

    def lines(self, unit: str) -> dict[int, int]:
        """How often each line of a unit's source ran: as often as that of its instructions which ran most.

        A line has the instructions that the PTX says are of it, and those that were inlined by a call in it. Where a
        PTX leaves open which of several calls that was, they count for lines that have no others. Branches count for
        none: a compiler leads ways around them that come to the same.
        """
        found: dict[int, int] = {}
        perhaps: dict[int, int] = {}
        executed = self.executed.get(unit, {})
        for said in self._program(unit).instructions:
            if _BRANCH.match(said.text):
                continue
            count = executed.get(said.line, 0)
            for lines, counts in ((said.lines, found), (said.perhaps, perhaps)):
                for place in lines:
                    file, _, number = place.rpartition(":")
                    if file.rpartition("/")[2] == f"{unit}.cu":
                        counts[int(number)] = max(counts.get(int(number), 0), count)
        return {**perhaps, **found}

    def _answer(self, request: Any, message: int, room: int) -> int:
        """A launch, as the host code asks for it; no exception may pass through that."""
        try:
            self._launch(request.contents)
            return 0
        except Exception as error:
            self.fault = error
            text = str(error).encode()[: room - 1] + b"\0"
            ctypes.memmove(message, text, len(text))
            return 1

    def _launch(self, request: _Request) -> None:
        unit, kernel = request.unit.decode(), request.kernel.decode()
        program = self._program(unit)
        if kernel not in program.entries:
            raise EmulationError(f"no kernel {kernel} in ptx/{unit}.ptx")
        entry = program.entries[kernel]
        given = [request.param_bytes[n] for n in range(request.param_count)]
        if tuple(given) != entry.param_sizes:
            raise EmulationError(f"{kernel} takes parameters of {list(entry.param_sizes)} bytes, the host has {given}")
        params = bytearray(entry.param_bytes + 16)
        for n, (offset, size) in enumerate(zip(entry.param_offsets, entry.param_sizes, strict=True)):
            params[offset : offset + size] = ctypes.string_at(request.params[n], size)
        buffers = [request.buffers[n] for n in range(request.buffer_count)]
        cluster = tuple(request.cluster)
        self.launches += 1
        statistics = run(
            program,
            entry,
            tuple(request.grid),
            tuple(request.block),
            request.shared_bytes,
            bytes(params),
            [Memory(each.address, each.bytes, bool(each.writable), each.name.decode()) for each in buffers],
            cluster=None if cluster == (1, 1, 1) else cluster,
            completions=self.completions,
            seed=self.seed,
            checks=self.checks,
        )
        counts = self.executed.setdefault(unit, {})
        for line, count in statistics.executed.items():
            counts[line] = counts.get(line, 0) + count

    def _program(self, unit: str) -> Loaded:
        if unit not in self._programs:
            self._programs[unit] = load(self._text(unit))
        return self._programs[unit]

    def _text(self, unit: str) -> str:
        path = self.folder / "ptx" / f"{unit}.ptx"
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            names = ", ".join(sorted(each.stem for each in path.parent.glob("*.ptx"))) or "none"
            raise EmulationError(f"{unit}: no unit of this module, which has {names}: no file {path}") from None


@contextmanager
def use(module: Any, *, completions: str = "random", seed: int = 0, checks: bool = True) -> Iterator[Emulator]:
    """While this holds, ``module`` (a package that fagen built for CUDA cards) computes on CPU tensors, emulated.

    Autocast is the CPU's for them. A kernel's fault is raised as :class:`fagen.emulate.Fault`, at the latest when this
    ends. Raises TypeError for what is no such package.
    """
    inner = _module_of(module)
    if inner.device == "cpu":
        raise ValueError(f"{inner.name} is built for the CPU: there is nothing to emulate")
    emulator = Emulator(inner.folder, completions=completions, seed=seed, checks=checks)
    # It is in the process: to load it anew, from wherever, would end that.
    library = ctypes.CDLL(str(inner.library), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    library.fagen_emulate.argtypes = [ctypes.c_void_p]
    before = inner.emulator
    _put(library, inner, emulator)
    try:
        yield emulator
    except RuntimeError as error:
        if emulator.fault is not None and str(error).startswith(_PREFIX):
            raise emulator.fault from error
        raise
    finally:
        _put(library, inner, before)


def _module_of(given: Any) -> Any:
    """What a package of fagen's is the front of, or that itself. Each carries its class along: it is known by what it
    has."""
    inner = getattr(given, "_module", given)
    if all(hasattr(inner, name) for name in ("name", "device", "folder", "library", "emulator")):
        return inner
    what = repr(given)
    what = what if len(what) <= 80 else f"an object of {type(given).__name__}"
    raise TypeError(
        f"driver.use: expected a module that fagen built for cards, as `from generated import a100` gives, found {what}"
    )


def _put(library: ctypes.CDLL, module: Any, emulator: Emulator | None) -> None:
    module.emulator = emulator
    library.fagen_emulate(None if emulator is None else ctypes.addressof(emulator.table))
