"""The limit that stands beside every figure: this CPU's multiply-add rate, measured in the same run."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from ..errors import Problem, ToolchainError
from ..resources import templates_dir
from ..target import ISAS
from ..toolchain import find_compiler

_SECONDS = 0.3


def peak_flops(isa: str, threads: int) -> dict[str, float]:
    """Operations a second of all ``threads`` together, by dtype: {"f32": ..., "bf16": ...}.

    bf16 is absent where the ISA has no bf16 dot product. The best of three tries counts, since a limit is the most
    that was ever reached. Raises ToolchainError where there is no C++ compiler that can build for the ISA.
    """
    compiler = find_compiler()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "peak.so"
        source = templates_dir() / "cpu" / "peak.cpp"
        command = [*compiler.command, "-std=c++17", "-O2", "-ffp-contract=fast", "-shared", "-fPIC", *ISAS[isa].flags]
        command += [f"-I{templates_dir() / 'include'}", str(source), "-o", str(library)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            raise ToolchainError(Problem(f"{source.name} does not compile: {first}", hint="see `fagen doctor`"))
        functions = ctypes.CDLL(str(library))
        rates = {
            "f32": max(_rate(functions.fagen_peak_float32, threads) for _ in range(3)),
            "bf16": max(_rate(functions.fagen_peak_bf16, threads) for _ in range(3)),
        }
    return {dtype: rate for dtype, rate in rates.items() if rate}


def _rate(function: Any, threads: int) -> float:
    function.restype = ctypes.c_double
    function.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_float)]

    def once(rounds: int) -> float:
        buffers = [(ctypes.c_float * 3)(0.5, 0.25) for _ in range(threads)]
        done = [0.0] * threads

        def work(index: int) -> None:
            done[index] = function(rounds, buffers[index])  # ctypes releases the interpreter lock

        workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(done) / (time.perf_counter() - start)

    probe = 100_000
    rate = once(probe)
    if not rate:
        return 0.0
    per_round = rate / threads  # operations a second of one thread
    operations_a_round = function(1, (ctypes.c_float * 3)(0.5, 0.25))
    return once(max(probe, int(_SECONDS * per_round / operations_a_round)))
