"""`fagen build` from a spec to a module that a program imports, and again, and elsewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fagen.build.budget import DEFAULT_PEAK_MB
from fagen.build.keys import read_headers

ROOT = Path(__file__).resolve().parents[2]
SPEC = """\
fagen: 1
name: tiny
target: cpu
isa: portable
defaults: {dtype: f32, backward: false}
variants:
  - {name: full, head_dim: 8}
  - {name: causal, head_dim: 8, mask: causal}
"""
USE = (
    "import torch; from {out} import tiny\n"
    "q = torch.zeros(1, 4, 1, 8); v = torch.eye(8)[:4].view(1, 4, 1, 8)\n"
    "print(tiny.causal(q, q, v)[0, :, 0, :4].tolist())"
)
ROWS = [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3, 0.0], [0.25, 0.25, 0.25, 0.25]]


def fagen(
    *words: str | Path, cwd: Path, cache: Path, root: Path = ROOT, code: int = 0, **environ: str
) -> tuple[Any, str]:
    """Run a command with --json; its value and what it wrote to stderr."""
    full = {**os.environ, "PYTHONPATH": str(root), "FAGEN_CACHE_DIR": str(cache), **environ}
    command = [sys.executable, "-m", "fagen", *map(str, words), "--json"]
    done = subprocess.run(command, check=False, cwd=cwd, env=full, capture_output=True, text=True)
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout), done.stderr


def use(folder: Path) -> None:
    """Import the module in a process that knows fagen not, and see that it computes."""
    code = USE.format(out="generated")
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [pytest.approx(row) for row in ROWS]


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Everything below a folder: inode, time of last change, size. Equal if nothing at all was written there."""
    paths = [folder, *folder.rglob("*")]
    status = {path: path.stat(follow_symlinks=False) for path in paths if "__pycache__" not in path.parts}
    return {str(path): (s.st_ino, s.st_ctime_ns, 0 if path.is_dir() else s.st_size) for path, s in status.items()}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, so that each test compiles only what it changes."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a space and letters beyond ASCII in its path, holding the spec."""
    folder = tmp_path / "ein Ordner für α"
    folder.mkdir()
    (folder / "tiny.yaml").write_text(SPEC)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of fagen to edit."""
    root = tmp_path / "source tree"
    for name in ("fagen", "templates", "specs"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def test_build_then_import(place: Path, cache: Path) -> None:
    value, _ = fagen("build", "tiny.yaml", cwd=place, cache=cache)
    (report,) = value["builds"]
    assert report["status"] == "built"
    assert set(report["units"]) == {"binding", "full forward", "causal forward"}
    # What the memory budget counts with for a unit it does not know.
    assert all(unit["seconds"] > 0 and 1 < unit["peak_mb"] < DEFAULT_PEAK_MB for unit in report["units"].values())
    assert json.loads((place / "generated" / ".fagen" / "reports" / "tiny.json").read_text()) == report
    folder = place / "generated" / "tiny"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert re.fullmatch(r"library_[0-9a-f]{8}\.so", manifest["library"])
    assert manifest["namespace"] == f"fagen_tiny_{manifest['library'][8:16]}"
    assert (folder / "sources" / "causal_forward.cpp").is_file()
    assert not list((place / "generated" / ".fagen" / "staging").iterdir())
    use(place)


def test_no_path_of_this_machine_in_what_is_published(place: Path, cache: Path) -> None:
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    for path in (place / "generated" / "tiny").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            data = path.read_bytes()
            for secret in (str(place), str(ROOT / "templates"), str(cache), str(Path(sys.prefix))):
                assert secret.encode() not in data, f"{secret} in {path}"


def test_second_build_does_nothing_in_no_time(place: Path, cache: Path, source: Path) -> None:
    """Under a second, torch not imported, not a byte written, and it says so."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    before = tree(place), tree(cache), tree(source)
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    assert value["builds"][0]["status"] == "up to date"
    assert value["builds"][0]["compiled"] == []
    assert stderr == ""
    assert (tree(place), tree(cache), tree(source)) == before
    code = (
        "import sys, time; started = time.perf_counter()\n"
        "from fagen.cli import app\n"
        "try: app(['build', 'tiny.yaml'])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "print(time.perf_counter() - started)\n"
        "heavy = {'torch', 'sympy', 'jinja2', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environ = {**os.environ, "PYTHONPATH": str(source), "FAGEN_CACHE_DIR": str(cache)}
    times = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=place, env=environ, capture_output=True, text=True, check=True
        )
        line, seconds = done.stdout.splitlines()
        assert re.fullmatch(r"generated/tiny is up to date: compiled nothing \(\d\.\d\d s\)", line)
        times.append(float(seconds))
    assert min(times) < 1.0


def test_the_same_spec_elsewhere_compiles_nothing(place: Path, cache: Path, tmp_path: Path) -> None:
    """Another folder, other order of keys, comments, another --out: objects come from the cache."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    other = tmp_path / "other"
    other.mkdir()
    text = SPEC.replace("{name: causal, head_dim: 8, mask: causal}", "{mask: causal, head_dim: 8, name: causal}")
    text = text.replace("fagen: 1\nname: tiny\n", "name: tiny # a comment\nfagen: 1\n")
    assert text != SPEC
    (other / "tiny.yaml").write_text(text)
    value, _ = fagen("build", "tiny.yaml", "--out", other / "elsewhere", cwd=other, cache=cache)
    assert value["builds"][0]["compiled"] == []
    assert len(value["builds"][0]["cached"]) == 3
    first, second = (
        json.loads((folder / "tiny" / "manifest.json").read_text())
        for folder in (place / "generated", other / "elsewhere")
    )
    assert first["library"] == second["library"]
    library = first["library"]
    assert (place / "generated" / "tiny" / library).read_bytes() == (
        other / "elsewhere" / "tiny" / library
    ).read_bytes()


def test_one_changed_variant_compiles_one_file(place: Path, cache: Path) -> None:
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    (place / "tiny.yaml").write_text(SPEC.replace("mask: causal", "mask: causal and q - kv < 2"))
    value, _ = fagen("build", "tiny.yaml", cwd=place, cache=cache)
    assert value["builds"][0]["compiled"] == ["causal forward"]
    assert set(value["builds"][0]["cached"]) == {"binding", "full forward"}


def test_an_edited_header_with_an_old_time(place: Path, cache: Path, source: Path) -> None:
    """Recompiles the kernels that include it and nothing else, though the file looks years old."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    header = source / "templates" / "include" / "fagen" / "cpu" / "simd.h"
    header.write_text(header.read_text() + "// a remark\n")
    os.utime(header, (0, 0))
    headers = read_headers(source / "templates" / "include")
    sources = place / "generated" / "tiny" / "sources"
    users = {
        path.stem.replace("_", " ")
        for path in sources.glob("*.cpp")
        if "fagen/cpu/simd.h" in headers.used_by(path.read_bytes())
    }
    assert users == {"full forward", "causal forward"}
    value, _ = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    assert set(value["builds"][0]["compiled"]) == users
    # And back: the first objects are still there.
    header.write_text(header.read_text().replace("// a remark\n", ""))
    value, _ = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    assert value["builds"][0]["compiled"] == []


def test_source_tree_and_cache_are_only_read(place: Path, cache: Path, source: Path) -> None:
    """With everything prebuilt (by a fagen in another folder), a build writes to its output alone."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    for path in [source, *source.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(source), tree(cache)
    value, _ = fagen("build", "tiny.yaml", "--out", "again", cwd=place, cache=cache, root=source)
    assert value["builds"][0]["compiled"] == []
    assert (tree(source), tree(cache)) == before
    # The module itself can be replaced and deleted.
    assert all(path.stat().st_mode & 0o200 for path in (place / "again").rglob("*"))
    for path in source.rglob("*"):
        path.chmod(0o755)


@pytest.fixture
def read_only(cache: Path) -> Iterator[Path]:
    """The cache as a mount that cannot be written, not even by root."""
    mounted = subprocess.run(["mount", "--bind", cache, cache], check=False, capture_output=True)
    if mounted.returncode == 0:
        subprocess.run(["mount", "-o", "remount,ro,bind", cache], check=True)
    elif os.getuid() != 0:
        for path in [cache, *cache.rglob("*")]:
            if path.is_dir():
                path.chmod(0o555)
    else:
        pytest.skip("root can write everywhere, and mounting is not allowed here")
    yield cache
    if mounted.returncode == 0:
        subprocess.run(["umount", cache], check=True)
    for path in [cache, *cache.rglob("*")]:
        if path.is_dir():
            path.chmod(0o755)


def test_read_only_cache(place: Path, cache: Path, request: pytest.FixtureRequest) -> None:
    """What is prebuilt builds; what is not ends in one line that says what to do."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    request.getfixturevalue("read_only")
    value, _ = fagen("build", "tiny.yaml", "--out", "again", cwd=place, cache=cache)
    assert value["builds"][0]["compiled"] == []
    (place / "tiny.yaml").write_text(SPEC.replace("head_dim: 8}", "head_dim: 9}"))
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, code=7)
    assert f"error: the object cache {cache} cannot be written" in stderr
    assert "FAGEN_CACHE_DIR" in stderr
    use(place)


def test_output_that_cannot_be_written(place: Path, cache: Path) -> None:
    _, stderr = fagen("build", "tiny.yaml", "--out", "/proc/fagen", cwd=place, cache=cache, code=7)
    assert "error: the output folder /proc/fagen cannot be written" in stderr


def test_compile_error(place: Path, cache: Path, source: Path) -> None:
    """The first error, the rendered source's path and line, the command; the last good module stays."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    template = next(path for path in (source / "templates" / "cpu").glob("forward*") if path.is_file())
    template.write_text(template.read_text() + "\nstatic int broken = nonsense;\n")
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=5)
    match = re.search(r"error: (\S+\.cpp):(\d+):\d+: .*nonsense.* \(compiling (full|causal) forward\)", stderr)
    assert match is not None, stderr
    kept = place / match[1]
    assert "nonsense" in kept.read_text().splitlines()[int(match[2]) - 1]
    assert value["exit_code"] == 5
    command = re.search(r"to repeat it: (cd .*)", stderr)
    assert command is not None
    again = subprocess.run(command[1], shell=True, cwd=place, check=False, capture_output=True, text=True)
    assert again.returncode != 0
    assert "nonsense" in again.stderr
    use(place)


def test_template_error_names_the_template(place: Path, cache: Path, source: Path) -> None:
    """A slip in a template: the place in it and the variant, not a stack trace."""
    template = next(path for path in (source / "templates" / "cpu").glob("forward*") if path.is_file())
    template.write_text(template.read_text() + "\n{{ no_such_name }}\n")
    _, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=1)
    assert "no_such_name" in stderr
    assert template.name in stderr
    assert "Traceback" not in stderr


def test_torch_upgrade_rebuilds_the_binding_alone(place: Path, cache: Path, tmp_path: Path) -> None:
    """Its key holds torch's version; kernels know nothing of torch."""
    import torch

    from fagen.build.cache import Cache
    from fagen.build.module_job import make_job
    from fagen.toolchain import Torch, find_compiler

    root = Path(torch.__file__).parent
    old, new, moved = (
        {
            unit.label: unit.key
            for unit in make_job(place / "tiny.yaml", None, find_compiler(), t, Cache(cache), "off").units
        }
        for t in (Torch("2.13.0", root), Torch("2.14.0", root), Torch("2.13.0", tmp_path / "elsewhere"))
    )
    assert {label for label in old if old[label] != new[label]} == {"binding"}
    assert moved == old


def test_max_jobs(place: Path, tmp_path: Path) -> None:
    """With MAX_JOBS=1 no two compilers run at once; with 3, they do."""
    compiler = tmp_path / "noting-c++"
    notes = tmp_path / "notes"
    compiler.write_text(
        f'#!/bin/sh\ncase "$*" in *" -c "*) echo + >> "{notes}"; sleep 0.3;; esac\n'
        f'c++ "$@"; status=$?\ncase "$*" in *" -c "*) echo - >> "{notes}";; esac\nexit $status\n'
    )
    compiler.chmod(0o755)
    for jobs, most in (("1", 1), ("3", 3)):
        notes.write_text("")
        fresh = tmp_path / f"cache{jobs}"
        fagen(
            "build", "tiny.yaml", "--check", "off", "--force", cwd=place, cache=fresh, MAX_JOBS=jobs, CXX=str(compiler)
        )
        running = highest = 0
        for line in notes.read_text().split():
            running += 1 if line == "+" else -1
            highest = max(highest, running)
        assert highest <= most
        assert most == 1 or highest > 1


def test_a_built_module_checks_again_from_the_command_line(place: Path, cache: Path) -> None:
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    value, _ = fagen("check", "tiny", "-v", "causal", "--seed", "7", cwd=place, cache=cache)
    assert "causal" in json.dumps(value)
    value, _ = fagen("list", "tiny", cwd=place, cache=cache)
    assert [variant["name"] for variant in value["variants"]] == ["full", "causal"]


def test_long_names_make_short_file_names(place: Path, cache: Path) -> None:
    """Encrypted homes allow 143 bytes."""
    name = "n" * 100
    (place / "tiny.yaml").write_text(
        SPEC.replace("name: tiny", f"name: {'m' * 100}").replace("name: full", f"name: {name}")
    )
    fagen("build", "tiny.yaml", "--check", "off", cwd=place, cache=cache)
    longest = max((path.name for folder in (place, cache) for path in folder.rglob("*")), key=len)
    assert len(longest.encode()) <= 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_leaves_nothing_behind(number: signal.Signals, code: int, place: Path, tmp_path: Path) -> None:
    """Ctrl-C or a polite kill: an exit code of its own, the private folder gone, the compilers stopped."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "FAGEN_CACHE_DIR": str(tmp_path / "empty")}
    command = [sys.executable, "-m", "fagen", "build", "tiny.yaml"]
    process = subprocess.Popen(
        command, cwd=place, env=environ, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    staging = place / "generated" / ".fagen" / "staging"
    deadline = time.monotonic() + 60
    while not list(staging.glob("*/work/build.ninja")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.2)
    # From a terminal, Ctrl-C reaches every process of the group; `kill` reaches one.
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert list(staging.iterdir()) == []
    assert not (place / "generated" / "tiny").exists()


def test_published_sources_compile_where_they_lie(place: Path, cache: Path) -> None:
    """With the headers beside them, and nothing of fagen."""
    from fagen.toolchain import find_compiler

    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    sources = place / "generated" / "tiny" / "sources"
    for name in ("causal_forward.cpp", "name.cpp"):
        command = [*find_compiler().command, "-std=c++17", "-Iinclude", "-fsyntax-only", name]
        subprocess.run(command, cwd=sources, check=True)


FAULTS = {"another scale": "p.scale = 1.01f * stack.real();", "crash": "*(volatile int*)8 = 1;"}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_kernel(fault: str, place: Path, cache: Path, source: Path) -> None:
    """Is not published: 6, the variant and the command that repeats it; the last good module stays."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    header = source / "templates" / "include" / "fagen" / "host" / "ops.h"
    right = "p.scale = stack.real();"
    assert right in header.read_text()
    header.write_text(header.read_text().replace(right, FAULTS[fault]))
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source, code=6)
    assert value["exit_code"] == 6
    assert "error: causal computes a wrong number" in stderr
    again = re.search(r"repeat: fagen (check .* -v causal .*)", stderr)
    assert again is not None
    fagen(*shlex.split(again[1]), cwd=place, cache=cache, root=source, code=6)
    use(place)


DIFFERENT = {
    "nothing": "sink: false",
    "score": "score: softcap(30)",
    "another score": "score: softcap(15)",
    "mask": "mask: causal",
    "another mask": "mask: causal and q - kv < 5",
    "one more": "mask: causal and q - kv < 6",
    "align": "mask: causal\n    align: top_left",
    "dtype": "dtype: bf16",
    "sink": "sink: true",
    "value dim": "value_dim: 16",
    "tiles": "tiles: {kv: 64}",
}
# These change what the module does with the same forward kernel: an argument's default is its Python's business, the
# order of dims the binding's, and backward has a kernel of its own.
SAME_KERNEL = {"scale": "scale: 0.25", "layout": "layout: bhsd", "backward": "backward: true"}


def keys(folder: Path, text: str, name: str = "tiny.yaml") -> dict[str, str]:
    """The object keys, by unit, of a spec; nothing is compiled."""
    from fagen.build.module_job import make_job
    from fagen.toolchain import find_compiler, find_torch

    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    job = make_job(path, None, find_compiler(), find_torch(), None, "off")
    return {unit.label: unit.key for unit in job.units} | {"library": job.library}


def one(more: str = "mask: causal", isa: str = "portable") -> str:
    return (
        f"fagen: 1\nname: tiny\ntarget: cpu\nisa: {isa}\ndefaults: {{dtype: f32, backward: false}}\n"
        f"variants:\n  - name: a\n    head_dim: 8\n    {more}\n"
    )


def test_specs_that_differ_in_one_field_share_no_kernel(tmp_path: Path) -> None:
    found = {what: keys(tmp_path, one(more)) for what, more in DIFFERENT.items()}
    found |= {isa: keys(tmp_path, one("sink: false", isa)) for isa in ("avx2", "avx512")}
    assert len({key["a forward"] for key in found.values()}) == len(found)
    assert len({key["library"] for key in found.values()}) == len(found)
    for what, more in SAME_KERNEL.items():
        same = keys(tmp_path, one(more))
        assert same["a forward"] == found["nothing"]["a forward"]
        assert (same["library"] == found["nothing"]["library"]) is (what == "scale")


def test_what_must_not_change_keys(tmp_path: Path) -> None:
    """Another folder, the order of YAML keys, comments, and other variants around it."""
    alone = keys(tmp_path, one())
    assert keys(tmp_path / "ö ö", one()) == alone
    assert keys(tmp_path, "# a comment\n\n" + one("mask:   causal  # another")) == alone
    assert (
        keys(tmp_path, one().replace("    head_dim: 8\n    mask: causal", "    mask: causal\n    head_dim: 8")) == alone
    )
    before = one().replace("variants:\n", "variants:\n  - {name: b, head_dim: 16}\n")
    assert keys(tmp_path, before)["a forward"] == alone["a forward"]
