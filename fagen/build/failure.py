"""A compiler's complaint, made readable: the first error, where it is, and how to see it again."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from ..errors import CompileError, Problem

_ERROR = re.compile(
    r"^(?P<file>[^:\n]+):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<message>.*)$", re.MULTILINE
)
# As nvcc's front end prints it: `a.cu(12): error: ...`, `a.cu(12): error #20: ...`; ptxas has no place in a source.
_CUDA_ERROR = re.compile(r"^(?P<file>[^(\n]+)\((?P<line>\d+)\): error(?: #[\w-]+)?: (?P<message>.*)$", re.MULTILINE)
_PLAIN_ERROR = re.compile(r"^(?:[^:\n]*: |ptxas )?(?:fatal )?(?:error|fatal) *: (?P<message>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """A command that failed in ``folder`` on ``file``, and all that it printed."""

    label: str
    folder: Path
    file: str
    command: tuple[str, ...]
    status: int
    output: str


def compile_error(failure: Failure, kept: Path) -> CompileError:
    """The error to raise, after moving the sources to the folder ``kept``, where they can be compiled again."""
    shown = _keep(failure, kept)
    again = f"cd {shlex.quote(str(shown))} && {shlex.join(failure.command)}"
    hint = f"the whole output is in {shown / 'error.txt'}; to repeat it: {again}"
    if _was_killed(failure):
        return CompileError(
            Problem(
                f"the compiler of {failure.label} was killed, most likely for want of memory",
                path=str(shown / failure.file),
                hint=f"run fewer at once, as `MAX_JOBS=1 fagen build ...`; {hint}",
            )
        )
    first = _ERROR.search(failure.output) or _CUDA_ERROR.search(failure.output)
    if first is not None:
        column = first.groupdict().get("column")
        return CompileError(
            Problem(
                f"{first['message']} (compiling {failure.label})",
                path=str(shown / first["file"]),
                line=int(first["line"]),
                column=int(column) if column else None,
                hint=hint,
            )
        )
    plain = _PLAIN_ERROR.search(failure.output)
    lines = [line for line in failure.output.splitlines() if line.strip()]
    message = plain["message"] if plain else (lines[0] if lines else f"exit status {failure.status}")
    return CompileError(Problem(f"{message} (compiling {failure.label})", path=str(shown / failure.file), hint=hint))


def _was_killed(failure: Failure) -> bool:
    # The driver says "Killed signal terminated program cc1plus"; killed itself, its status is negative or 128 + 9.
    return failure.status in (-9, 137) or "Killed" in failure.output or "std::bad_alloc" in failure.output


def _keep(failure: Failure, kept: Path) -> Path:
    """Copy what the command reads to ``kept``; returns the path to show."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in {failure.file, *failure.command}:
        if Path(name).name == name and (failure.folder / name).is_file():
            shutil.copyfile(failure.folder / name, kept / name)
    if (failure.folder / "include").is_dir():
        shutil.copytree(failure.folder / "include", kept / "include")
    (kept / "error.txt").write_text(f"{shlex.join(failure.command)}\n{failure.output}", encoding="utf-8")
    return shown_path(kept)


def shown_path(path: Path) -> Path:
    """A path as people want to read it: relative if it is below the current folder."""
    try:
        return Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
    except OSError:  # the current folder is gone
        return path
