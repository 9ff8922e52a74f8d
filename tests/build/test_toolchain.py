"""Finding tools in good and broken environments: one line that names the tool, where it was looked for and the fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fagen import toolchain
from fagen.errors import ToolchainError
from fagen.toolchain import find_compiler, find_ninja, find_nvcc, find_torch

ROOT = Path(__file__).resolve().parents[2]


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def fake_gcc(path: Path, version: str) -> Path:
    """Answers who it is, and nothing else."""
    major = version.split(".")[0]
    macros = f'#define __GNUC__ {major}\\n#define __VERSION__ "{version}"\\n#define __x86_64__ 1\\n'
    return script(path, f'if [ "$1" = --version ]; then echo "g++ (Fake) {version}"; else printf \'{macros}\'; fi')


def test_compiler_of_this_machine() -> None:
    compiler = find_compiler()
    assert compiler.kind in ("gcc", "clang")
    assert compiler.version
    assert str(Path(compiler.command[0]).parent) not in compiler.identity


def test_identity_is_the_compiler_and_not_its_place(tmp_path: Path) -> None:
    """Another name or folder: the same. Another version or option: another."""
    one = fake_gcc(tmp_path / "a" / "g++", "12.2.0")
    two = fake_gcc(tmp_path / "b b" / "c++", "12.2.0")
    other = fake_gcc(tmp_path / "c" / "g++", "12.3.0")
    identity = find_compiler({"CXX": str(one)}).identity
    assert find_compiler({"CXX": str(two)}).identity == identity
    assert find_compiler({"PATH": str(two.parent)}).identity == identity
    assert find_compiler({"CXX": str(other)}).identity != identity
    assert find_compiler({"CXX": f"{one} -march=native"}).identity != identity


def test_an_upgraded_compiler_is_noticed(tmp_path: Path) -> None:
    """In the same process, at the same path, even if it is as large and no newer."""
    path = fake_gcc(tmp_path / "g++", "12.2.0")
    before = find_compiler({"CXX": str(path)}).identity
    fake_gcc(path, "12.3.0")
    os.utime(path, (1, 1))
    assert find_compiler({"CXX": str(path)}).identity != before


def test_compiler_through_a_launcher(tmp_path: Path) -> None:
    launcher = script(tmp_path / "ccache", 'exec "$@"')
    compiler = find_compiler({"CXX": f"{launcher} {shutil.which('c++')}"})
    assert compiler.identity == find_compiler().identity


BROKEN = {
    "no compiler": (
        {"PATH": "{tmp}"},
        r"no C\+\+ compiler: looked for CXX \(unset\) and for c\+\+, g\+\+, clang\+\+ on",
    ),
    "CXX missing": ({"CXX": "/no/such/g++"}, "CXX names `/no/such/g"),
    "CXX no command": ({"CXX": "'g++"}, "CXX is not a command"),
    "CXX no compiler": ({"CXX": "true"}, "`.*true` does not work as a C"),
    "CXX fails": ({"CXX": "false"}, "`.*false` does not work as a C"),
    "CXX old": ({"CXX": "{tmp}/old/g++"}, r"is gcc \(Fake\) 8.3.0, which is too old"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_compilers(case: str, tmp_path: Path) -> None:
    changes, message = BROKEN[case]
    fake_gcc(tmp_path / "old" / "g++", "8.3.0")
    environ = {**os.environ, "CXX": "", **{name: value.format(tmp=tmp_path) for name, value in changes.items()}}
    with pytest.raises(ToolchainError, match=message) as caught:
        find_compiler(environ)
    assert caught.value.problems[0].hint


def test_ninja_of_the_package_then_of_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_ninja().is_file()
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    script(tmp_path / "ninja", "true")
    assert find_ninja({"PATH": str(tmp_path)}) == tmp_path / "ninja"
    with pytest.raises(ToolchainError, match=f"no ninja: looked for the PyPI package .* on PATH \\({tmp_path / 'no'}"):
        find_ninja({"PATH": str(tmp_path / "no")})


def test_torch_is_found_without_importing_it() -> None:
    code = (
        "import sys, fagen.toolchain as t; torch = t.find_torch(); print(torch.version)\n"
        "assert 'torch' not in sys.modules and all(d.is_dir() for d in torch.include_dirs[:1])"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    from importlib.metadata import version

    assert done.stdout.strip().split("+")[0] == version("torch").split("+")[0]


def fake_torch(folder: Path, version: str, *, headers: bool = True) -> None:
    package = folder / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    (package / "version.py").write_text(f"__version__ = '{version}'\n")
    (package / "lib" / "libtorch_cpu.so").touch()
    if headers:
        stable = package / "include" / "torch" / "csrc" / "stable"
        stable.mkdir(parents=True)
        (stable / "library.h").touch()


@pytest.mark.parametrize(
    ("version", "headers", "message"),
    [("2.9.1", True, "2.9.1 is too old"), ("2.12.0+cpu", False, "no C\\+\\+ headers"), ("2.12.0+cpu", True, None)],
)
def test_torch_versions(
    version: str, headers: bool, message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torch(tmp_path, version, headers=headers)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    if message is None:
        assert find_torch().version == version
    else:
        with pytest.raises(ToolchainError, match=message):
            find_torch()


def test_torch_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match="PyTorch is not installed for"):
        find_torch()


NVCC = "echo 'nvcc: NVIDIA (R)'; echo 'Cuda compilation tools, release 13.0, V13.0.88'"


@pytest.mark.parametrize("value", ["{tmp}/cuda", ":{tmp}/cuda", "{tmp}/no: {tmp}/cuda :", "{tmp}/cuda/"])
def test_nvcc_by_cuda_home(value: str, tmp_path: Path) -> None:
    nvcc = script(tmp_path / "cuda" / "bin" / "nvcc", NVCC)
    found = find_nvcc({"CUDA_HOME": value.format(tmp=tmp_path), "PATH": ""}, roots=[])
    assert found.path == nvcc
    assert found.version == "13.0.88"


def test_nvcc_on_path_and_in_wheels(tmp_path: Path) -> None:
    script(tmp_path / "bin" / "nvcc", NVCC)
    wheel = script(tmp_path / "site-packages" / "nvidia" / "cu13" / "bin" / "nvcc", NVCC)
    roots = [tmp_path / "site-packages"]
    assert find_nvcc({"PATH": str(tmp_path / "bin")}, roots).origin == "PATH"
    found = find_nvcc({"PATH": "", "CUDA_HOME": "/nonexistent"}, roots)
    assert (found.path, found.origin) == (wheel, "PyPI wheel")


def test_nvcc_that_is_too_old_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_USUAL_FOLDERS", ())
    script(tmp_path / "old" / "bin" / "nvcc", NVCC.replace("13.0", "11.8"))
    script(tmp_path / "broken" / "bin" / "nvcc", "exit 1")
    new = script(tmp_path / "site-packages" / "nvidia" / "cu13" / "bin" / "nvcc", NVCC)
    environ = {"PATH": "", "CUDA_HOME": str(tmp_path / "old"), "CUDA_PATH": str(tmp_path / "broken")}
    assert find_nvcc(environ, [tmp_path / "site-packages"]).path == new
    with pytest.raises(ToolchainError, match="CUDA_HOME, 11.8.88, which is too old.*CUDA_PATH, which does not run"):
        find_nvcc(environ, roots=[])


def test_no_nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_USUAL_FOLDERS", ())
    with pytest.raises(ToolchainError, match="no nvcc: looked on PATH, /nonexistent/bin/nvcc \\(CUDA_HOME\\)"):
        find_nvcc({"PATH": str(tmp_path), "CUDA_HOME": "/nonexistent"}, roots=[])


# Environment changes -> exit code, what the one line names. {tmp} is an empty folder, {bin} has a Python alone.
DOCTOR = {
    "as it is": ({}, 0, "compiler"),
    "no compiler": ({"PATH": "{tmp}"}, 4, "no C++ compiler"),
    "CXX nonsense": ({"CXX": "/no/such/compiler"}, 4, "CXX names"),
    "CUDA_HOME unset": ({"CUDA_HOME": None}, 0, "CUDA_HOME"),
    "CUDA_HOME nonsense": ({"CUDA_HOME": "/nonexistent"}, 0, "no bin/nvcc in /nonexistent"),
    "CUDA_HOME with a colon": ({"CUDA_HOME": ":/usr/local/cuda"}, 0, "CUDA_HOME"),
    "cache not writable": ({"FAGEN_CACHE_DIR": "/proc/fagen"}, 7, "/proc/fagen cannot be written"),
    "HOME unset": ({"HOME": None, "FAGEN_CACHE_DIR": None, "TMPDIR": "{tmp}"}, 0, "fagen-"),
    "HOME nonsense": ({"HOME": "/proc/1/nobody", "FAGEN_CACHE_DIR": None, "TMPDIR": "{tmp}"}, 0, "fagen-"),
    "MAX_JOBS nonsense": ({"MAX_JOBS": "lots"}, 2, "MAX_JOBS is 'lots'"),
}


@pytest.mark.parametrize("case", DOCTOR)
def test_doctor(case: str, tmp_path: Path) -> None:
    changes, code, named = DOCTOR[case]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "FAGEN_CACHE_DIR": str(tmp_path / "cache")}
    for name, value in changes.items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value.format(tmp=tmp_path)
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "fagen", "doctor", "--json"], check=False, capture_output=True, text=True, env=environ
    )
    seconds = time.monotonic() - started
    assert done.returncode == code, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    errors = [check for check in report["checks"] if check["status"] == "error"]
    assert report["ok"] is (code == 0)
    assert len(errors) == (code != 0)
    assert named in done.stdout
    for error in errors:
        assert "\n" not in error["found"]
        assert error["fix"]
    assert seconds < 5, "a second on a quiet machine"


def test_build_says_what_is_missing_before_it_starts(tmp_path: Path) -> None:
    """One line for people, one code for scripts, and no stack trace."""
    (tmp_path / "s.yaml").write_text("fagen: 1\nname: s\ntarget: cpu\nvariants: [{name: a, head_dim: 8}]\n")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(tmp_path), "CXX": ""}
    done = subprocess.run(
        [sys.executable, "-m", "fagen", "build", "s.yaml"],
        check=False,
        capture_output=True,
        text=True,
        env=environ,
        cwd=tmp_path,
    )
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("error: no C++ compiler: looked for")
    assert lines[1].startswith("  hint: install one")
    assert not (tmp_path / "generated").exists()
