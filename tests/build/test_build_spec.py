"""`fagen build` from a spec to a module that a program imports, and again, and elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from fagen_command import ROOT, SPEC, fagen, tree, use

from fagen.build.budget import DEFAULT_PEAK_MB
from fagen.build.keys import read_headers


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


def test_a_comment_in_a_spec_checks_nothing_again(place: Path, cache: Path, source: Path) -> None:
    """Where a variant and its expressions stand is no part of what they are."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    (place / "tiny.yaml").write_text("# a comment\n" + SPEC.replace("mask: causal", "mask:   causal"))
    value, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache, root=source)
    assert value["builds"][0]["status"] == "built"
    assert re.findall(r"^check \[\d/2\] (\w+): (.*)$", stderr, re.MULTILINE) == [
        ("full", "passed before"),
        ("causal", "passed before"),
    ]


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


def test_published_sources_compile_where_they_lie(place: Path, cache: Path) -> None:
    """With the headers beside them, and nothing of fagen."""
    from fagen.toolchain import find_compiler

    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    sources = place / "generated" / "tiny" / "sources"
    for name in ("causal_forward.cpp", "name.cpp"):
        command = [*find_compiler().command, "-std=c++17", "-Iinclude", "-fsyntax-only", name]
        subprocess.run(command, cwd=sources, check=True)


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_a_library_cut_short(kept: float, place: Path, cache: Path) -> None:
    """Refused by name: to load it would end the process, and a byte of difference may do so later."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    (library,) = (place / "generated" / "tiny").glob("library_*.so")
    data = library.read_bytes()
    library.write_bytes(data[: int(len(data) * kept)] if kept < 1.0 else data[:-1] + b"x")
    command = [sys.executable, "-c", "from generated import tiny"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "ImportError: fagen module tiny: " in done.stderr
    assert f"{library.name} is not what the build wrote" in done.stderr
    _, stderr = fagen("build", "tiny.yaml", cwd=place, cache=cache)
    use(place)


def test_a_case_by_its_name_from_the_command_line(place: Path, cache: Path) -> None:
    """That one alone, with the seed that was given."""
    fagen("build", "tiny.yaml", cwd=place, cache=cache)
    value, _ = fagen("check", "tiny", "--case", "tile-plus-1", "--seed", "3", cwd=place, cache=cache)
    assert [(report["variant"], report["cases"]) for report in value["variants"]] == [
        ("full", ["tile-plus-1"]),
        ("causal", ["tile-plus-1"]),
    ]
    assert value["seed"] == 3
