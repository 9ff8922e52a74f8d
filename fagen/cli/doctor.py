"""What `fagen doctor` looks at: everything a build needs, each with what was found and how to mend it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from ..build.budget import DEFAULT_PEAK_MB, free_memory_mb, job_limit, usable_cores
from ..build.cache import locate_cache
from ..errors import FagenError, Problem, ToolchainError
from ..runtime.cards import cards
from ..target import native_isa
from ..toolchain import Compiler, find_compiler, find_ninja, find_nvcc, find_torch
from .output import print_json

OK, WARNING, ERROR = "ok", "warning", "error"
_SECONDS = 20
_TRIAL = '#include <cstdint>\n#include <cmath>\nextern "C" float f(int32_t x) { return std::sqrt(float(x)); }\n'
_CUDA_TRIAL = """
#include <cuda_bf16.h>
#include <cstdint>
extern "C" __global__ void f(__nv_bfloat16* x, const int32_t* y) { x[threadIdx.x] = __float2bfloat16(y[0]); }
"""


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's: ``status`` ok, warning or error; ``exit_code`` is what an error means for a build."""

    name: str
    status: str
    found: str
    fix: str | None = None
    exit_code: int = 0


def doctor(as_json: bool) -> int:
    """Print every finding; returns the exit code: 0, or that of the first error."""
    findings = examine()
    code = next((finding.exit_code for finding in findings if finding.status == ERROR), 0)
    if as_json:
        print_json({"ok": code == 0, "exit_code": code, "checks": [asdict(finding) for finding in findings]})
        return code
    colours = {OK: typer.colors.GREEN, WARNING: typer.colors.YELLOW, ERROR: typer.colors.RED}
    for finding in findings:
        mark = typer.style(finding.status.ljust(8), fg=colours[finding.status])
        typer.echo(f"{mark} {finding.name.ljust(9)} {finding.found}")
        if finding.fix:
            typer.echo(f"{' ' * 19}fix: {finding.fix}")
    return code


def examine() -> list[Finding]:
    """All findings, in the order a build would meet them."""
    return [
        _python(),
        _required("compiler", _compiler),
        _required("ninja", _ninja),
        _required("torch", _torch),
        _required("cache", _cache),
        _required("machine", _machine),
        _cuda_home(),
        _optional("nvcc", _nvcc),
        _optional("cards", _cards),
    ]


def _python() -> Finding:
    found = f"{platform.python_version()}, {sys.executable}, fagen in {Path(__file__).parents[1]}"
    if sys.platform != "linux":
        return Finding(
            "python", ERROR, f"{found}, on {sys.platform}", "fagen builds on Linux", ToolchainError.exit_code
        )
    return Finding("python", OK, found)


def _compiler() -> str:
    compiler = find_compiler()
    _try_compiling(compiler)
    return f"{compiler.kind} {compiler.version}, {' '.join(compiler.command)}, for {compiler.machine}"


def _try_compiling(compiler: Compiler) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cpp"
        source.write_text(_TRIAL)
        command = [*compiler.command, "-std=c++17", "-shared", "-fPIC", "trial.cpp", "-o", "trial.so"]
        done = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    if done.returncode != 0:
        first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        raise ToolchainError(
            Problem(f"{' '.join(compiler.command)} cannot compile a small library: {first}", hint="reinstall g++")
        )


def _ninja() -> str:
    path = find_ninja()
    try:
        done = subprocess.run([path, "--version"], check=True, capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolchainError(
            Problem(f"{path} does not run: {error}", hint="pip install --force-reinstall ninja")
        ) from None
    return f"{done.stdout.strip()}, {path}"


def _torch() -> str:
    torch = find_torch()
    return f"{torch.version}, {torch.root}"


def _cache() -> str:
    cache = locate_cache()
    cache.require_writable()
    return str(cache.root)


def _machine() -> str:
    jobs = job_limit([DEFAULT_PEAK_MB] * 1024)
    text = f"{native_isa()}, {usable_cores()} cores, {free_memory_mb() / 1024:.1f} GiB free: {jobs} compilers at once"
    return text + (f" (MAX_JOBS={os.environ['MAX_JOBS']})" if os.environ.get("MAX_JOBS") else "")


def _nvcc() -> str:
    nvcc = find_nvcc()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "trial.cu"
        source.write_text(_CUDA_TRIAL)
        command = [str(nvcc.path), "-std=c++17", "-arch=compute_80", "-ptx", "trial.cu", "-o", "trial.ptx"]
        done = subprocess.run(
            command, check=False, cwd=folder, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    if done.returncode != 0:
        said = done.stderr + done.stdout
        first = next((line for line in said.splitlines() if "error" in line or "fatal" in line), said.strip()[:200])
        raise ToolchainError(
            Problem(
                f"{nvcc.path} cannot compile a small kernel: {first}",
                hint="pip install --force-reinstall 'fagen[cuda]', or mend the CUDA toolkit",
            )
        )
    return f"{nvcc.version}, {nvcc.path} ({nvcc.origin})"


def _cards() -> str:
    found = ", ".join(map(str, cards()))
    return found or "none visible: kernels for cards are checked in the emulator"


def _cuda_home() -> Finding:
    value = os.environ.get("CUDA_HOME", "")
    parts = [part.strip() for part in value.split(":") if part.strip()]
    if not parts:
        return Finding("CUDA_HOME", OK, "not set" if not value else f"empty ({value!r})")
    bad = [part for part in parts if not os.access(Path(part) / "bin" / "nvcc", os.X_OK)]
    if bad:
        return Finding(
            "CUDA_HOME", WARNING, f"{value!r}: no bin/nvcc in {bad[0]}", "unset it, or name the toolkit's folder"
        )
    if parts != [value]:
        return Finding("CUDA_HOME", WARNING, f"{value!r} is read as {parts[0]}", f"export CUDA_HOME={parts[0]}")
    return Finding("CUDA_HOME", OK, value)


def _required(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, OK, look())
    except FagenError as error:
        problem = error.problems[0]
        return Finding(name, ERROR, problem.message, problem.hint, error.exit_code)


def _optional(name: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(name, OK, look())
    except FagenError as error:
        problem = error.problems[0]
        return Finding(name, WARNING, f"{problem.message} (needed for CUDA targets only)", problem.hint)
