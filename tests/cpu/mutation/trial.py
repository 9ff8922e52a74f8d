"""One mutant's trial: compiled, loaded in a process of its own, and run through the check's cases until one fails."""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from mutate import Mutant
from subjects import SUBJECTS, Called, Subject

from fagen.resources import templates_dir
from fagen.runtime.check.call import MemoryFault, forward, forward_and_backward
from fagen.runtime.check.visits import visit_fault
from fagen.toolchain import find_compiler

# A copy, so that an edit during a run is not taken for a mutant's doing.
_COPY = tempfile.TemporaryDirectory(prefix="fagen-mutation-")
INCLUDE = Path(shutil.copytree(templates_dir() / "include", Path(_COPY.name) / "include")) / "fagen"
SECONDS = 30.0  # a mutant that runs longer hangs
_BYTES = 6 << 30

SURVIVED, SAME_CODE, OTHER_TILES = "survived", "same code", "other tiles"


@dataclass(frozen=True)
class Trial:
    """How a mutant ended.

    "survived"; "same code" (it compiles to the very same); "other tiles" (it computes the same, but visits or masks
    more tiles than it need, as its tile counts say: slower, not wrong); "not C++"; "crashed"; "hung"; or the name of
    the case that found it.
    """

    mutant: Mutant
    outcome: str
    seconds: float

    @property
    def survived(self) -> bool:
        return self.outcome == SURVIVED


# math.h, array.h and bounds.h have tests of their own (tests/build/test_expr_*, tests/unit/test_expr_*).
HEADERS = tuple(
    f"cpu/{name}.h"
    for name in (
        "element",
        "gemm",
        "gradient",
        "nonfinite",
        "pack",
        "pairs",
        "param_gradient",
        "softmax",
        "turn",
        "work",
    )
    if (INCLUDE / "cpu" / f"{name}.h").exists()
)


def try_mutant(mutant: Mutant) -> Trial:
    """Try a mutant of the program's."""
    begun = time.monotonic()
    return Trial(mutant, try_change(mutant.file, mutant.applied), time.monotonic() - begun)


def try_change(file: str, change: Callable[[str], str]) -> str:
    """How a changed file ends: on the subject named after the colon of a kernel's file, on all for a header's."""
    names = [file.partition(":")[2]] if ":" in file else list(SUBJECTS)
    outcomes = []
    for name in names:
        outcomes.append(_try_on(SUBJECTS[name], file, change))
        if outcomes[-1] not in (SURVIVED, SAME_CODE):
            break
    # Other than on the last subject, it survived or changed nothing.
    return SURVIVED if outcomes[-1] == SAME_CODE and SURVIVED in outcomes else outcomes[-1]


def _try_on(subject: Subject, file: str, change: Callable[[str], str]) -> str:
    with tempfile.TemporaryDirectory(prefix="fagen-mutant-") as name:
        folder = Path(name)
        libraries = dict(original(subject))
        changed = False
        for direction in ("forward", "backward"):
            if file in HEADERS:
                header = file
                if f'"fagen/{header}"' not in _expanded(subject, direction):
                    continue
                overlay = folder / "include" / "fagen" / header
                overlay.parent.mkdir(parents=True, exist_ok=True)
                overlay.write_text(change((INCLUDE / header).read_text()))
                text = subject.sources[direction].text
            elif file.startswith(f"{direction}:"):
                text = change(subject.sources[direction].text)
            else:
                continue
            path = _compile(subject, direction, text, folder)
            if path is None:
                return "not C++"
            if path.read_bytes() != libraries[direction].read_bytes():
                changed = True
                libraries[direction] = path
        return _run(subject, libraries) if changed else SAME_CODE


@lru_cache
def _expanded(subject: Subject, direction: str) -> str:
    """The source and all headers it includes, as text."""
    seen: dict[str, str] = {}
    waiting = [subject.sources[direction].text]
    while waiting:
        text = waiting.pop()
        for line in text.splitlines():
            if line.startswith('#include "fagen/'):
                name = line.split('"')[1]
                if name not in seen:
                    seen[name] = (INCLUDE.parent / name).read_text()
                    waiting.append(seen[name])
    return subject.sources[direction].text + "".join(f'"{name}"\n' for name in seen)


@lru_cache
def original(subject: Subject) -> Mapping[str, Path]:
    """The libraries of the kernels as they are, by direction."""
    folder = Path(_COPY.name) / f"{subject.variant.name}-{os.getpid()}"
    folder.mkdir()
    found = {}
    for direction, source in subject.sources.items():
        path = _compile(subject, direction, source.text, folder)
        assert path is not None, f"{source.name} does not compile"
        found[direction] = path
    return found


@lru_cache
def usual_tiles(subject: Subject) -> list[tuple[int, int]]:
    """Full and partial tiles that the kernels as they are visit, in each case."""
    libraries = original(subject)
    return _tiles(subject, Called(subject, libraries["forward"], libraries["backward"]))


def _tiles(subject: Subject, called: Called) -> list[tuple[int, int]]:
    found = []
    for _, inputs, _ in subject.prepared:
        counts = called.forward.tile_counts(inputs.q, inputs.k, inputs.params)
        found.append((counts.full, counts.partial))
    return found


def _compile(subject: Subject, direction: str, text: str, folder: Path) -> Path | None:
    """The library of a kernel's text, quickly made; None if the compiler refuses it. ``folder``/include goes first."""
    source, library = folder / f"{direction}.cpp", folder / f"{direction}.so"
    source.write_text(text)
    flags = [flag for flag in subject.sources[direction].flags if not flag.startswith(("-O", "-W"))]
    command = [*find_compiler().command, *flags, "-O1", "-w", "-fvisibility=default", "-shared"]
    # Paths relative to the folder, so that equal code gives equal bytes.
    command += ["-Iinclude", f"-I{INCLUDE.parent}", source.name, "-o", library.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    return library if done.returncode == 0 else None


def _run(subject: Subject, libraries: Mapping[str, Path]) -> str:
    """What the check says of the kernels in ``libraries``, in a child process, since they may do anything."""
    usual_tiles(subject)  # before the fork, once
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            # No core files, no swapping, no endless output.
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            os.write(send, _verdict(subject, Called(subject, libraries["forward"], libraries["backward"])).encode())
        finally:
            os._exit(0)
    os.close(send)
    try:
        ready, _, _ = select.select([receive], [], [], SECONDS)
        if not ready:
            return "hung"
        return os.read(receive, 4096).decode() or "crashed"
    finally:
        os.close(receive)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _verdict(subject: Subject, called: Called) -> str:
    torch.set_num_threads(1)
    for case, inputs, expected in subject.prepared:
        try:
            if visit_fault(called, subject.tiling, case, inputs):
                return case.name
            got = forward(called, case, inputs)
            if not all(deviation.passed for deviation in expected.judge(got)):
                return case.name
            got = forward_and_backward(called, case, inputs)
            if not all(deviation.passed for deviation in expected.judge(got)):
                return case.name
        except (MemoryFault, AssertionError, RuntimeError, ValueError):
            return case.name
    now, before = _tiles(subject, called), usual_tiles(subject)
    if now == before:
        return SURVIVED
    more = all(
        full <= full_before and full + partial >= full_before + partial_before
        for (full, partial), (full_before, partial_before) in zip(now, before, strict=True)
    )
    return OTHER_TILES if more else SURVIVED
