"""Objects to one shared library."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ..toolchain import Compiler
from .failure import Failure, compile_error
from .room import require_room

# Undefined names are found here rather than at import; nothing of the machine's paths gets into the file.
LINK_FLAGS = ("-shared", "-fPIC", "-Wl,-z,defs", "-Wl,-z,noexecstack", "-Wl,--build-id=sha1", "-Wl,--as-needed")


def link_library(library: Path, inputs: Sequence[Path], flags: Sequence[str], compiler: Compiler, failed: Path) -> None:
    """Link ``inputs`` (objects, and small sources to compile on the way) and the libraries that ``flags`` name.

    Raises :class:`CompileError`, and OSError if a disk is full.
    """
    # A response file: thousands of objects do not fit on a command line. Its quoting is the shell's, with backslashes.
    names = library.with_suffix(".rsp")
    names.write_bytes(os.fsencode("".join(f"{_escape(str(path))}\n" for path in inputs)))
    command = [
        *compiler.command,
        *LINK_FLAGS,
        f"-Wl,-soname,{library.name}",
        "-o",
        library.name,
        f"@{names.name}",
        *flags,
    ]
    done = subprocess.run(
        command,
        check=False,
        cwd=library.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
    )
    names.unlink()
    if done.returncode != 0:
        output = done.stdout + done.stderr
        require_room(output)
        failure = Failure(library.name, library.parent, library.name, tuple(command), done.returncode, output)
        raise compile_error(failure, failed)


def _escape(path: str) -> str:
    return "".join(f"\\{char}" if char in " \t\n\\'\"" else char for char in path)
