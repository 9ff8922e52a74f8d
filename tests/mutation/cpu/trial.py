"""Tries changed kernels: each compiled, loaded in a process of its own, and run through the check's cases.

    PYTHONPATH=.:tests python -m mutation.cpu.trial HEADERS

answers requests on stdin, one JSON object a line, with outcomes on stdout: ../workers.py starts it. HEADERS is a folder
with a copy of templates/include.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from fagen.runtime.check.call import MemoryFault, forward, forward_and_backward
from fagen.runtime.check.cases import Case
from fagen.runtime.check.visits import visit_fault
from fagen.toolchain import find_compiler

from ..outcomes import CRASHED, HUNG, NOT_CPP, OTHER_TILES, SAME_CODE, SURVIVED, over_all
from ..workers import serve
from .subjects import HEADERS, SUBJECTS, Called, Subject

SECONDS = 6  # of a processor's time: a mutant that runs longer hangs
_WAITING = 40.0  # seconds, whoever else has the processor: one that waits longer hangs, too
_FIRST = 4  # cases that find most mutants: the others are prepared when one outlives them
_BYTES = 6 << 30  # and one that takes so much more memory than there was fails

_originals = tempfile.TemporaryDirectory(prefix="fagen-originals-")
_include = Path()  # of main's argument


def try_unchanged(name: str) -> str:
    """How a subject's kernels as they are end: not "survived" where the check or the machine is at fault."""
    return _run(SUBJECTS[name], original(SUBJECTS[name]))


def try_change(file: str, text: str) -> str:
    """How ``file`` with this text ends: a kernel on the subject that it names, a header on all but some."""
    both = [name for name, subject in SUBJECTS.items() if not subject.forward_only]
    names = [file.partition(":")[2]] if ":" in file else both
    return over_all(_try_on(SUBJECTS[name], file, text) for name in names)


def _try_on(subject: Subject, file: str, changed_text: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fagen-mutant-") as name:
        folder = Path(name)
        libraries = dict(original(subject))
        changed = False
        for direction in ("forward", "backward"):
            if file in HEADERS:
                if f'"fagen/{file}"' not in _expanded(subject, direction):
                    continue
                overlay = folder / "include" / "fagen" / file
                overlay.parent.mkdir(parents=True, exist_ok=True)
                overlay.write_text(changed_text)
                text = subject.sources[direction].text
            elif file.startswith(f"{direction}:"):
                text = changed_text
            else:
                continue
            path = _compile(subject, direction, text, folder)
            if path is None:
                return NOT_CPP
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
                    seen[name] = (_include / name).read_text()
                    waiting.append(seen[name])
    return subject.sources[direction].text + "".join(f'"{name}"\n' for name in seen)


@lru_cache
def original(subject: Subject) -> Mapping[str, Path]:
    """The libraries of the kernels as they are, by direction."""
    folder = Path(_originals.name) / subject.variant.name
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
    for case in subject.cases:
        inputs, _ = subject.prepared(case)
        counts = called.forward.tile_counts(inputs.q, inputs.k, inputs.params)
        found.append((counts.full, counts.partial))
    return found


def _compile(subject: Subject, direction: str, text: str, folder: Path) -> Path | None:
    """The library of a kernel's text, quickly made; None if the compiler refuses it. ``folder``/include goes first."""
    source, library = folder / f"{direction}.cpp", folder / f"{direction}.so"
    source.write_text(text)
    flags = tuple(flag for flag in subject.sources[direction].flags if not flag.startswith(("-O", "-W")))
    # An index past the end of an array traps: on the stack or in registers it may do no harm that the check could see.
    flags += ("-fsanitize=bounds", "-fsanitize-undefined-trap-on-error", "-O1", "-w", "-fvisibility=default")
    command = [*find_compiler().command, *flags, "-shared", *_precompiled(flags)]
    # Paths relative to the folder, so that equal code gives equal bytes.
    command += ["-Iinclude", f"-I{_include}", source.name, "-o", library.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    return library if done.returncode == 0 else None


@lru_cache
def _precompiled(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Options that include the system's headers as GCC has read them before, a third of the time a kernel takes."""
    if find_compiler().kind != "gcc":
        return ()
    folder = Path(tempfile.mkdtemp(dir=_originals.name))
    header = folder / "system.h"
    names = ("cmath", "cstdint", "cstring", "sched.h", *(["immintrin.h"] if "-mavx2" in flags else []))
    header.write_text("".join(f"#include <{name}>\n" for name in names))
    command = [*find_compiler().command, *flags, "-x", "c++-header", str(header), "-o", f"{header}.gch"]
    subprocess.run(command, check=True, timeout=300)
    return ("-include", str(header))


def _run(subject: Subject, libraries: Mapping[str, Path]) -> str:
    """What the check says of the kernels in ``libraries``."""
    for cases in (subject.cases[:_FIRST], subject.cases[_FIRST:]):
        # Before the fork, once.
        for case in cases:
            subject.prepared(case)
        if cases[-1:] == subject.cases[-1:]:
            usual_tiles(subject)
        outcome = _in_child(subject, libraries, cases)
        if outcome != SURVIVED:
            break
    return outcome


def _in_child(subject: Subject, libraries: Mapping[str, Path], cases: Sequence[Case]) -> str:
    """The same of some cases, in a child process, since the kernels may do anything."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            # No core files, no swapping, no end of time, no endless output.
            most = _address_space() + _BYTES
            for limit, value in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, SECONDS)):
                resource.setrlimit(limit, (value, value))
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            called = Called(subject, libraries["forward"], libraries["backward"])
            os.write(send, _verdict(subject, called, cases).encode())
        finally:
            os._exit(0)
    os.close(send)
    ready, _, _ = select.select([receive], [], [], _WAITING)
    verdict = os.read(receive, 4096).decode() if ready else HUNG
    os.close(receive)
    if not verdict:  # it has ended, or will
        _, status = os.waitpid(child, 0)
        # What a process gets that has had its time.
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return HUNG if late else CRASHED
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return verdict


def _address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _verdict(subject: Subject, called: Called, cases: Sequence[Case]) -> str:
    torch.set_num_threads(1)
    for case in cases:
        inputs, expected = subject.prepared(case)
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
    if cases[-1:] != subject.cases[-1:]:
        return SURVIVED  # these
    now, before = _tiles(subject, called), usual_tiles(subject)
    if now == before:
        return SURVIVED
    more = all(
        full <= full_before and full + partial >= full_before + partial_before
        for (full, partial), (full_before, partial_before) in zip(now, before, strict=True)
    )
    return OTHER_TILES if more else SURVIVED


def main(include: Path) -> None:
    """Answer requests, until they end."""
    global _include
    _include = include
    # Before any work: a child that forks off a process with running OpenMP threads would wait for them for ever.
    torch.set_num_threads(1)
    serve(try_unchanged, try_change)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
