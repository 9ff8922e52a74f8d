"""Tries changed kernels: each compiled to PTX and run in the emulator through the check's cases.

    PYTHONPATH=.:tests python -m mutation.cuda.trial HEADERS

answers requests on stdin, one JSON object a line, with outcomes on stdout: ../workers.py starts it. HEADERS is a folder
with a copy of templates/include.
"""

from __future__ import annotations

import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from fagen.emulate import EmulationError, Fault
from fagen.emulate import compile as programs
from fagen.emulate.ptx.model import Instruction, Scope
from fagen.emulate.ptx.parse import parse
from fagen.emulate.translate.flow import registers_of, used_and_written
from fagen.resources import templates_dir
from fagen.runtime.check.call import MemoryFault, forward
from fagen.runtime.check.cases import Case
from fagen.runtime.check.machine import SHUFFLED
from fagen.runtime.check.visits import visit_fault
from fagen.toolchain import find_nvcc

from ..outcomes import CRASHED, HUNG, NOT_CPP, OTHER_TILES, SAME_CODE, SURVIVED, over_all
from ..workers import serve
from .subjects import SUBJECTS, Called, Subject

_PROCESSOR = 240  # seconds of its time: a survivor takes some ten
_WAITING = 3600.0  # seconds, whoever else has the processor
_BYTES = 6 << 30  # that a mutant may take more than there was
_TOLD = bool(os.environ.get("FAGEN_MUTATION_TIMES"))  # how long each step takes, on stderr

_include = templates_dir() / "include"  # or main's argument


def try_unchanged(name: str) -> str:
    """How a subject's kernel as it is ends: not "survived" where the check, the emulator or the machine is at fault."""
    return _in_child(SUBJECTS[name], original(SUBJECTS[name]))


def try_change(file: str, text: str) -> str:
    """How ``file`` with this text ends: a kernel on the subject that it names, a header on all that include it."""
    names = [file.partition(":")[2]] if ":" in file else [name for name in SUBJECTS if file in headers_of(name)]
    return over_all(_try_on(SUBJECTS[name], file, text) for name in names)


@lru_cache
def headers_of(name: str) -> frozenset[str]:
    """The headers that a subject's kernel includes, and those that they do, as cuda/softmax.h."""
    found: set[str] = set()
    texts = [SUBJECTS[name].source.text]
    while texts:
        included = set(re.findall(r'#include "fagen/([^"]+)"', texts.pop())) - found
        found |= included
        texts += [(_include / "fagen" / header).read_text() for header in included]
    return frozenset(found)


def _try_on(subject: Subject, file: str, changed: str) -> str:
    with tempfile.TemporaryDirectory(prefix="fagen-mutant-") as name:
        folder = Path(name)
        text = changed if ":" in file else subject.source.text
        if ":" not in file:
            overlay = folder / "include" / "fagen" / file
            overlay.parent.mkdir(parents=True)
            overlay.write_text(changed)
        begun = time.monotonic()
        ptx = _compile(subject, text, folder)
        _tell("nvcc", begun)
        if ptx is None:
            return NOT_CPP
        if ptx == original(subject):
            return SAME_CODE
        return _in_child(subject, ptx)


@lru_cache
def original(subject: Subject) -> str:
    """The PTX of the kernel as it is."""
    with tempfile.TemporaryDirectory(prefix="fagen-original-") as folder:
        ptx = _compile(subject, subject.source.text, Path(folder))
    assert ptx is not None, f"{subject.source.name} does not compile"
    return ptx


def _compile(subject: Subject, text: str, folder: Path) -> str | None:
    """The PTX of a kernel's text; None if the compiler refuses it. ``folder``/include goes first."""
    (folder / subject.source.name).write_text(text)
    flags = [flag for flag in subject.source.flags if flag != "-lineinfo" and not flag.startswith("-W")]
    architecture = subject.target.replace("sm_", "compute_")
    command = [str(find_nvcc().path), *flags, "-allow-unsupported-compiler", "-w", f"-arch={architecture}", "-ptx"]
    command += ["-Iinclude", f"-I{_include}", subject.source.name, "-o", "out.ptx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    if done.returncode != 0:
        return None
    # Without what differs from one process of the compiler to the next.
    ptx = (folder / "out.ptx").read_text()
    return re.sub(r"_[0-9a-f]{8}_(?=\d+_)|(?<=_)[0-9a-f]{8}(?=_\d+)|(?<=_cu_)[0-9a-f]{8}_\d+", "", ptx)


def _in_child(subject: Subject, ptx: str) -> str:
    """What the check says of a kernel, in a child process, so that memory and loaded programs go with it."""
    for case in subject.cases:
        subject.prepared(case)
    programs.machine()
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        try:
            most = _address_space() + _BYTES
            limits = (resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, _PROCESSOR)
            for limit, value in limits:
                resource.setrlimit(limit, (value, value))
            outcome, tiles = _verdict(subject, ptx)
            os.write(send, json.dumps({"outcome": outcome[:1000], "tiles": tiles}).encode())
        finally:
            os._exit(0)
    os.close(send)
    ready, _, _ = select.select([receive], [], [], _WAITING)
    said = os.read(receive, 1 << 15) if ready else b""
    os.close(receive)
    if not said and ready:  # it is at its end: by its own doing, or by the limit of its time
        _, status = os.waitpid(child, 0)
        out_of_time = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        return HUNG if out_of_time else CRASHED
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    if not said:
        return HUNG
    answer = json.loads(said)
    if answer["outcome"] != SURVIVED:
        return str(answer["outcome"])
    name = subject.variant.name
    if ptx == original(subject):
        _usual_tiles[name] = answer["tiles"]
    elif name not in _usual_tiles:  # few mutants get here
        try_unchanged(name)
    usual = _usual_tiles.get(name, answer["tiles"])
    both = zip(answer["tiles"], usual, strict=True)
    more = all(
        full <= full_then and full + rest >= full_then + rest_then for (full, rest), (full_then, rest_then) in both
    )
    return OTHER_TILES if answer["tiles"] != usual and more else SURVIVED


_usual_tiles: dict[str, list[list[int]]] = {}


def _address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _verdict(subject: Subject, ptx: str) -> tuple[str, list[tuple[int, int]]]:
    """The first that is wrong, or SURVIVED; and of each case how many tiles ran without and with the mask."""
    torch.set_num_threads(1)
    begun = time.monotonic()
    try:
        called = Called(subject, _loaded(ptx))
    except EmulationError as error:
        return f"refused: {str(error).splitlines()[0]}", []
    _tell("translation", begun)
    begun = time.monotonic()
    if found := bank_fault(subject, called, ptx):
        return f"{subject.cases[0].name}: {found}", []
    for case, completions, seed in _runs(subject.cases):
        called.completions, called.seed = completions, seed
        if found := _fault(subject, called, case):
            return f"{case.name}: {found}, {completions} {seed}", []
    _tell("all cases", begun)
    return unwritten_fault(ptx) or SURVIVED, called.tiles


def bank_fault(subject: Subject, called: Called, ptx: str) -> str:
    """What is wrong with where the kernel has things in shared memory; "" if nothing."""
    inputs, _ = subject.prepared(subject.cases[0])
    called.banks = True
    try:
        forward(called, subject.cases[0], inputs)
    except (Fault, EmulationError, MemoryFault):
        return ""  # which a run that looks at more tells better
    finally:
        called.banks = False
    lines = ptx.splitlines()
    where = [line for line in called.conflicts if subject.swizzled or "ldmatrix" in lines[line - 1]]
    return f"conflicts of banks at {lines[where[0] - 1].strip()}" if where else ""


_REALS_BY_NVCC = re.compile(r"%fd?\d+")


def unwritten_fault(ptx: str) -> str:
    """Which register of a real number is read that no instruction writes, as nvcc leaves an element of an array that is
    not there, or has no value; "" if none is. In the emulator it may hold what does no harm: sums that are NaN have
    weights computed anew. Truth values are read so by kernels as they are, where it does not matter which."""
    for function in parse(ptx).functions.values():
        read: dict[str, Instruction] = {}
        written: set[str] = set()
        for instruction in () if function.body is None else _instructions(function.body):
            used, results, _ = used_and_written(instruction)
            written |= results
            if "mma_async" in instruction.modifiers:  # whose sums may begin with it
                written |= set(registers_of(instruction.operands[0]))
            read.update((name, instruction) for name in used - read.keys() if _REALS_BY_NVCC.fullmatch(name))
        for name in read.keys() - written:
            return f"nothing writes {name}, which is read: {read[name].text}"
    return ""


def _instructions(scope: Scope) -> Iterator[Instruction]:
    for statement in scope.statements:
        if isinstance(statement, Scope):
            yield from _instructions(statement)
        elif isinstance(statement, Instruction):
            yield statement


def _runs(cases: Sequence[Case]) -> Iterator[tuple[Case, str, int]]:
    """Cases and orders, the most telling first. Copies that come early show other mistakes than those that come late;
    races show in any order."""
    yield cases[0], "latest", 0
    yield cases[0], "earliest", 1
    for number, case in enumerate(cases[1:]):
        yield case, ("random", "latest", "earliest")[number % 3], 0
    for case in cases:
        if case.name in (cases[0].name, *SHUFFLED):
            yield from (
                (case, completions, seed) for seed, completions in enumerate(("latest", "earliest", "random"), 2)
            )


def _fault(subject: Subject, called: Called, case: Case) -> str:
    """What is wrong with one run of a case; "" if nothing."""
    inputs, expected = subject.prepared(case)
    try:
        if called.seed == 0 and (found := visit_fault(called, subject.tiling, case, inputs)):
            return found
        judged = expected.judge(forward(called, case, inputs))
        return next((f"wrong {deviation.output}" for deviation in judged if not deviation.passed), "")
    except Fault as fault:
        return fault.kind
    except (EmulationError, MemoryFault) as error:
        return str(error).splitlines()[0]


def _loaded(ptx: str) -> programs.Loaded:
    """The program, compiled quickly: it runs once."""
    with tempfile.TemporaryDirectory(prefix="fagen-program-") as folder:
        os.environ["FAGEN_CACHE_DIR"] = folder
        programs._PROGRAM_FLAGS = (*programs._FLAGS, "-O0", "-w")
        return programs.load(ptx)


def _tell(step: str, begun: float) -> None:
    if _TOLD:
        print(f"{step}: {time.monotonic() - begun:.2f} s", file=sys.stderr, flush=True)


def main(include: Path) -> None:
    """Answer requests, until they end."""
    global _include
    _include = include
    # Before any work: a child that forks off a process with running OpenMP threads would wait for them for ever.
    torch.set_num_threads(1)
    serve(try_unchanged, try_change)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
