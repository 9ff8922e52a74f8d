"""The tools a build calls: a C++ compiler, ninja, torch's headers and libraries, and (for CUDA targets) nvcc.

Nothing here imports torch, and nothing is remembered between processes: asking a compiler who it is takes a few
milliseconds, and a remembered answer would outlive an upgrade behind a wrapper script.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from importlib.util import find_spec
from pathlib import Path

from .errors import Problem, ToolchainError

OLDEST_COMPILER = {"gcc": 11, "clang": 14}  # the oldest that kernels are tested with
OLDEST_TORCH = (2, 10)  # the first with the stable ABI that the op binding is written against
OLDEST_NVCC = (12, 9)  # the first that knows all targets up to sm_121
COMPILER_NAMES = ("c++", "g++", "clang++")
_USUAL_FOLDERS = ("/usr/local/cuda", "/usr/local/cuda-*", "/opt/cuda")
_PROBE_SECONDS = 20.0


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler. ``command`` may hold several words (``ccache g++``).

    ``identity`` is equal for two compilers that make the same code, wherever they are installed; it goes into the key
    of every object.
    """

    command: tuple[str, ...]
    kind: str  # "gcc" | "clang"
    version: str
    machine: str  # as "x86_64"
    identity: str


@dataclass(frozen=True)
class Torch:
    """An installed PyTorch, found without importing it. ``cuda`` is the CUDA version it was built with, "" if none."""

    version: str
    root: Path
    cuda: str = ""

    @property
    def include_dirs(self) -> tuple[Path, ...]:
        """Where its C++ headers are."""
        include = self.root / "include"
        return (include, include / "torch" / "csrc" / "api" / "include")

    @property
    def library_dir(self) -> Path:
        """Where libtorch_cpu.so and libc10.so are."""
        return self.root / "lib"


@dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler, which knows where its headers are."""

    path: Path
    version: str
    origin: str  # which rule found it, for `fagen doctor`

    @property
    def identity(self) -> str:
        """Equal for two that make the same code, wherever they are installed; it goes into keys."""
        return f"nvcc {self.version}"


def find_compiler(environ: Mapping[str, str] | None = None) -> Compiler:
    """The C++ compiler to use: ``CXX`` if set, else the first of c++, g++, clang++ that is on PATH.

    Raises :class:`ToolchainError` if there is none, if ``CXX`` names none, or if it is too old.
    """
    environ = os.environ if environ is None else environ
    path = environ.get("PATH", os.defpath)
    named = environ.get("CXX", "").strip()
    if named:
        command = _split_command(named)
        found = shutil.which(command[0], path=path)
        if found is None:
            raise ToolchainError(
                Problem(
                    f"CXX names `{command[0]}`, which is not an executable",
                    hint=f"set CXX to a C++ compiler, or unset it to search PATH ({path}) for {_names(COMPILER_NAMES)}",
                )
            )
        return _probe_compiler((found, *command[1:]))
    for name in COMPILER_NAMES:
        found = shutil.which(name, path=path)
        if found is not None:
            return _probe_compiler((found,))
    raise ToolchainError(
        Problem(
            f"no C++ compiler: looked for CXX (unset) and for {_names(COMPILER_NAMES)} on PATH ({path})",
            hint="install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), or set CXX",
        )
    )


def find_ninja(environ: Mapping[str, str] | None = None) -> Path:
    """The ninja to use: the one of the PyPI package beside this Python, else the first on PATH."""
    environ = os.environ if environ is None else environ
    schemes = ("posix_prefix", "posix_user", sysconfig.get_default_scheme())
    folders = [sysconfig.get_path("scripts"), *(sysconfig.get_path("scripts", scheme) for scheme in schemes)]
    if find_spec("ninja") is not None:
        for folder in folders:
            if os.access(Path(folder) / "ninja", os.X_OK):
                return Path(folder) / "ninja"
    path = environ.get("PATH", os.defpath)
    found = shutil.which("ninja", path=path)
    if found is not None:
        return Path(found)
    raise ToolchainError(
        Problem(
            f"no ninja: looked for the PyPI package beside {sys.executable} and on PATH ({path})",
            hint="pip install ninja (or apt-get install ninja-build)",
        )
    )


def find_gcov(compiler: Compiler, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The command that reads what ``compiler``'s objects count: gcov, or llvm-cov gcov, of the compiler's own version.

    Looked for beside the compiler and on PATH, with and without the version in its name.
    """
    environ = os.environ if environ is None else environ
    tool, words = ("gcov", ()) if compiler.kind == "gcc" else ("llvm-cov", ("gcov",))
    match = re.search(r"(\d+)\.\d+\S*$", compiler.version) or re.search(r"(\d+)\.\d+", compiler.version)
    major = match[1] if match else ""
    beside = {os.path.dirname(path) for path in (compiler.command[0], os.path.realpath(compiler.command[0]))}
    path = os.pathsep.join([*sorted(beside), environ.get("PATH", os.defpath)])
    for name in (f"{tool}-{major}", tool):
        found = shutil.which(name, path=path)
        if found is None:
            continue
        banner = _output([found, *words, "--version"]) or ""
        if re.search(rf"(?<![\d.]){major}\.\d+", banner):
            return (found, *words)
    raise ToolchainError(
        Problem(
            f"no {tool}",
            hint=f"{tool} {major} comes with {compiler.kind} {major}; looked beside {compiler.command[0]} and on PATH",
        )
    )


def find_torch() -> Torch:
    """The PyTorch this Python would import, with its headers; it is not imported.

    Raises :class:`ToolchainError` if it is missing, too old, or without headers.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise ToolchainError(
            Problem(
                f"PyTorch is not installed for {sys.executable}",
                hint="pip install torch (2.10 or newer; the CPU build is enough)",
            )
        )
    root = Path(spec.origin).parent
    version = _torch_version(root)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ToolchainError(Problem(f"PyTorch {version} is too old", hint=f"pip install 'torch>={oldest}'"))
    torch = Torch(version, root, _torch_line(root, "cuda") or "")
    if not (torch.include_dirs[0] / "torch" / "csrc" / "stable" / "library.h").is_file():
        raise ToolchainError(
            Problem(f"PyTorch {version} at {root} has no C++ headers", hint="reinstall it: pip install torch")
        )
    if not (torch.library_dir / "libtorch_cpu.so").is_file():
        raise ToolchainError(
            Problem(f"PyTorch {version} at {root} has no lib/libtorch_cpu.so", hint="fagen builds on Linux only")
        )
    return torch


def find_nvcc(environ: Mapping[str, str] | None = None, roots: Sequence[Path] | None = None) -> Nvcc:
    """The CUDA compiler: from CUDA_HOME or CUDA_PATH, PATH, PyPI wheels, or the usual folders, in this order.

    ``roots`` are the site-packages folders searched for wheels (default: those of this Python). A stray ``:`` in
    CUDA_HOME is forgiven; a folder that it names and that holds no nvcc is reported only if no other place has one.
    One that is too old is passed over likewise.
    """
    environ = os.environ if environ is None else environ
    looked: list[str] = []
    for path, origin in _nvcc_places(environ, _site_packages() if roots is None else roots):
        if os.access(path, os.X_OK) and path.is_file():
            version = _nvcc_version(str(path))
            if version is not None and tuple(map(int, version.split(".")[:2])) >= OLDEST_NVCC:
                return Nvcc(path, version, origin)
            origin += f", {version}, which is too old" if version else ", which does not run"
        looked.append(f"{path} ({origin})")
    raise ToolchainError(
        Problem(
            f"no nvcc: looked on PATH{''.join(', ' + place for place in looked)}",
            hint=f"pip install 'fagen[cuda]', or install the CUDA toolkit ({'.'.join(map(str, OLDEST_NVCC))} or newer) "
            "and set CUDA_HOME to its folder",
        )
    )


def _nvcc_places(environ: Mapping[str, str], roots: Sequence[Path]) -> list[tuple[Path, str]]:
    places = []
    for name in ("CUDA_HOME", "CUDA_PATH"):
        for part in environ.get(name, "").split(":"):
            if part.strip():
                places.append((Path(part.strip()) / "bin" / "nvcc", name))
    found = shutil.which("nvcc", path=environ.get("PATH", os.defpath))
    if found is not None:
        places.append((Path(found), "PATH"))
    for root in roots:
        places += [(path, "PyPI wheel") for path in sorted(root.glob("nvidia/*/bin/nvcc"), reverse=True)]
    usual = [Path(name) for pattern in _USUAL_FOLDERS for name in sorted(glob(pattern), reverse=True)]
    return places + [(folder / "bin" / "nvcc", "usual folder") for folder in usual]


@functools.lru_cache(maxsize=8)
def _nvcc_version(path: str) -> str | None:
    text = _output([path, "--version"])
    match = re.search(r"release [\d.]+, V([\d.]+)", text or "")
    return match.group(1) if match else None


def _probe_compiler(command: tuple[str, ...]) -> Compiler:
    stat = os.stat(command[0])
    return _probe_compiler_file(command, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=8)
def _probe_compiler_file(command: tuple[str, ...], mtime_ns: int, size: int) -> Compiler:
    shown = shlex.join(command)
    banner = _output([*command, "--version"])
    predefined = _output([*command, "-dM", "-E", "-x", "c++", os.devnull])
    macros = dict(re.findall(r"^#define (\w+) ?(.*)$", predefined or "", re.MULTILINE))
    if not banner or "__VERSION__" not in macros:
        raise ToolchainError(
            Problem(f"`{shown}` does not work as a C++ compiler", hint="set CXX to GCC's g++ or to clang++")
        )
    kind = "clang" if "__clang__" in macros else "gcc"
    major = int(macros["__clang_major__" if kind == "clang" else "__GNUC__"])
    # The banner without its first word, which is only the name the compiler was called by.
    vendor = banner.splitlines()[0].partition(" ")[2]
    version = vendor if kind == "gcc" else macros["__VERSION__"].strip('"')
    if major < OLDEST_COMPILER[kind]:
        raise ToolchainError(
            Problem(
                f"`{shown}` is {kind} {version}, which is too old",
                hint=f"fagen needs GCC {OLDEST_COMPILER['gcc']} or Clang {OLDEST_COMPILER['clang']}; set CXX to one",
            )
        )
    digest = hashlib.sha256("\n".join(f"{k} {v}" for k, v in sorted(macros.items())).encode()).hexdigest()
    machine = next((name for name in ("x86_64", "aarch64") if f"__{name}__" in macros), "unknown")
    options = [word for word in command[1:] if word.startswith("-")]
    return Compiler(command, kind, version, machine, " ".join([kind, vendor, digest, *options]))


def _output(command: list[str]) -> str | None:
    """What the command prints, or None if it cannot run or fails."""
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            env=environ,
            timeout=_PROBE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _split_command(text: str) -> list[str]:
    if os.access(text, os.X_OK):  # a path with spaces in it
        return [text]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ToolchainError(
            Problem(f"CXX is not a command: {text!r} ({error})", hint="unset it, or quote it")
        ) from None


def _torch_version(root: Path) -> str:
    found = _torch_line(root, "__version__")
    if found:
        return found
    from importlib.metadata import version  # a build from source has no such line

    return version("torch")


def _torch_line(root: Path, name: str) -> str | None:
    """What torch/version.py sets ``name`` to, if to a text."""
    try:
        match = re.search(rf"^{name}(?:: [^=]+)? = '([^']+)'", (root / "version.py").read_text(), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None


def _site_packages() -> list[Path]:
    return [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)
