"""CUDA units: keys, commands, what is kept beside an object, what ptxas says, and what is said of sources that fail."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fagen import toolchain
from fagen.build import build
from fagen.build.cache import Cache
from fagen.build.compile import Unit, compile_units, object_of
from fagen.build.cuda import Resources, cuda_unit, image_symbol, ptx_of, resources, resources_of
from fagen.build.failure import Failure, compile_error
from fagen.build.keys import read_headers
from fagen.build.link import link_library
from fagen.build.progress import Silent
from fagen.build.published import warnings
from fagen.build.relative_lines import relative
from fagen.errors import CompileError, ToolchainError
from fagen.render import Source
from fagen.resources import templates_dir
from fagen.toolchain import Nvcc, find_compiler, find_ninja, find_nvcc

HEADERS = read_headers(templates_dir() / "include")
COMPILER = find_compiler()
TEXT = '#include <fagen/params.h>\nextern "C" __global__ void fagen_a_forward(float* x) { x[threadIdx.x] = 1.0f; }\n'
SOURCE = Source("a_forward.cu", TEXT, "forward", ("-std=c++17", "-O3"), "a")

SAID = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'fagen_a_tile_counts' for 'sm_80'
ptxas info    : Function properties for fagen_a_tile_counts
    136 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 136 bytes cumulative stack size, 24 bytes smem, 1744 bytes cmem[0]
ptxas info    : Compile time = 20.1 ms
ptxas info    : Compiling entry function 'fagen_a_forward' for 'sm_80'
ptxas info    : Function properties for fagen_a_forward
    832 bytes stack frame, 1336 bytes spill stores, 1404 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1744 bytes cmem[0]
ptxas info    : Compile time = 379.3 ms
"""

# Does nvcc's part: --version, a PTX of paths, and a fatbin that is the PTX.
NVCC = r"""#!{python}
import os, sys
words = sys.argv[1:]
output = words[words.index("-o") + 1]
if "-ptx" in words:
    here = os.getcwd()
    lines = ["// " + " ".join(words), '.file 1 "%s/a_forward.cu"' % here, '.file 2 "%s/include/fagen/params.h"' % here,
             '.file 3 "/opt/cuda/bin/../include/cuda_bf16.hpp"']
    open(output, "w").write("\n".join(lines) + "\n")
else:
    source = next(word for word in words if word.endswith(".ptx"))
    open(output, "w").write("fatbin of " + open(source).read())
    sys.stderr.write({said!r})
"""


@pytest.fixture
def fake(tmp_path: Path) -> Nvcc:
    path = tmp_path / "nvcc"
    path.write_text(NVCC.format(python=sys.executable, said=SAID))
    path.chmod(0o755)
    return Nvcc(path, "13.0.88", "a test")


def test_products_that_wait_for_each_other_are_told_of() -> None:
    why = "due to insufficient register resources"
    said = f"ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized {why} for "
    found = resources(said + "the function 'fagen_a_forward'\n" + SAID)
    assert found["fagen_a_forward"].serialized == why and not found["fagen_a_tile_counts"].serialized
    assert f"wait for each other: {why}" in str(found["fagen_a_forward"])
    entry = {"variant": {"name": "a"}, "plan": {"forward": {"tile_q": 64, "tile_kv": 32}}}
    taken = {name: {**asdict(each), "spill_stores": 0, "spill_loads": 0} for name, each in found.items()}
    [told] = warnings([{**entry, "resources": taken}])
    assert told == f"a: products of fagen_a_forward wait for each other, which is slow: {why}"


def test_what_ptxas_says() -> None:
    found = resources(SAID)
    assert found == {
        "fagen_a_tile_counts": Resources(registers=30, stack=136, shared=24),
        "fagen_a_forward": Resources(registers=255, stack=832, spill_stores=1336, spill_loads=1404),
    }
    assert [each.spills for each in found.values()] == [False, True]
    assert str(found["fagen_a_tile_counts"]) == (
        "30 registers, 136 bytes of stack, 24 bytes of static shared memory, no spills"
    )
    assert str(found["fagen_a_forward"]).endswith("spills 1336 bytes and reads 1404 back")


def test_keys_hold_what_decides_and_no_paths(fake: Nvcc) -> None:
    def key(source: Source = SOURCE, target: str = "sm_80", nvcc: Nvcc = fake) -> str:
        return cuda_unit(source, target, HEADERS, nvcc, COMPILER).key

    moved = Nvcc(Path("/elsewhere/nvcc"), fake.version, "PATH")
    assert key(nvcc=moved) == key()
    others = {
        key(target="sm_86"),
        key(nvcc=replace(fake, version="13.1.0")),
        key(replace(SOURCE, text=TEXT + "\n")),
        key(replace(SOURCE, flags=("-std=c++17", "-O2"))),
        key(replace(SOURCE, variant="b")),
    }
    assert len(others | {key()}) == 6


def compile_one(unit: Unit, work: Path, cache: Path) -> tuple[list[str], list[str]]:
    work.mkdir()
    done = compile_units(
        [unit],
        headers=HEADERS,
        compiler=COMPILER,
        ninja=find_ninja(),
        cache=Cache(cache),
        work=work,
        failed=work / "failed",
        jobs=1,
        progress=Silent(),
    )
    return list(done.made), list(done.cached)


def embedded(unit: Unit, work: Path) -> bytes:
    """What a library made of the unit has as its image."""
    reader = work / "reader.cpp"
    symbol = image_symbol("a", "forward")
    reader.write_text(f'extern "C" {{ extern const char {symbol}[]; const char* image() {{ return {symbol}; }} }}\n')
    library = work / "library.so"
    link_library(library, [reader, object_of(unit, work)], (), COMPILER, work / "failed")
    loaded = ctypes.CDLL(str(library))
    loaded.image.restype = ctypes.c_char_p
    return loaded.image()


def test_object_ptx_and_report_are_made_and_kept(fake: Nvcc, tmp_path: Path) -> None:
    """The cache gives all three back, and there are no paths of this machine in them."""
    unit = cuda_unit(SOURCE, "sm_80", HEADERS, fake, COMPILER)
    assert compile_one(unit, tmp_path / "first", tmp_path / "cache") == (["a forward"], [])
    assert compile_one(unit, tmp_path / "second", tmp_path / "cache") == ([], ["a forward"])
    for work in (tmp_path / "first", tmp_path / "second"):
        ptx = ptx_of(unit, work).decode()
        words, *files = ptx.splitlines()
        assert "-arch=compute_80" in words and "-std=c++17 -O3" in words and "-lineinfo" in words
        assert files == ['.file 1 "a_forward.cu"', '.file 2 "fagen/params.h"', '.file 3 "cuda_bf16.hpp"']
        assert resources_of(unit, work)["fagen_a_forward"].registers == 255
        assert embedded(unit, work).decode() == f"fatbin of {ptx}"
    # An entry that lacks a part is none.
    next((tmp_path / "cache").rglob("*.ptx")).unlink()
    assert compile_one(unit, tmp_path / "third", tmp_path / "cache") == (["a forward"], [])


def test_targets_of_one_card_alone(fake: Nvcc) -> None:
    first, _, second, _ = cuda_unit(SOURCE, "sm_90a", HEADERS, fake, COMPILER).commands
    assert "-arch=compute_90a" in first
    assert "arch=compute_90a,code=[sm_90a,compute_90a]" in second


def test_paths_of_sources_elsewhere_are_left_out() -> None:
    text = '\t.file\t1 "/src/a b/x.cu"\n\t.file\t2 "/cuda/include/../include/y.h"\n.loc 1 2 3\n'
    assert relative(text, "/src/a b") == '\t.file\t1 "x.cu"\n\t.file\t2 "y.h"\n.loc 1 2 3\n'


ERRORS = {
    "front end": ('a.cu(12): error: identifier "x" is undefined', "a.cu:12: ", 'identifier "x" is undefined'),
    "warning as error": ("a.cu(3): error #177-D: variable was declared", "a.cu:3: ", "variable was declared"),
    "ptxas": ("ptxas error   : Entry function uses too much shared data", "a.cu: ", "uses too much shared data"),
    "ptxas, fatal": ("ptxas fatal   : Unresolved extern function", "a.cu: ", "Unresolved extern function"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_nvcc_are_understood(case: str, tmp_path: Path) -> None:
    output, place, message = ERRORS[case]
    (tmp_path / "a.cu").write_text("")
    (tmp_path / "k.ptx").write_text("")
    failure = Failure("a forward", tmp_path, "a.cu", ("nvcc", "k.ptx"), 2, f"noise\n{output}\nmore\n")
    text = str(compile_error(failure, tmp_path / "kept"))
    assert place in text and message in text and "(compiling a forward)" in text
    assert (tmp_path / "kept" / "k.ptx").exists(), "what the command reads is kept"


def test_with_nvcc(tmp_path: Path) -> None:
    try:
        nvcc = find_nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    unit = cuda_unit(SOURCE, "sm_80", HEADERS, nvcc, COMPILER)
    assert compile_one(unit, tmp_path / "work", tmp_path / "cache") == (["a forward"], [])
    ptx = ptx_of(unit, tmp_path / "work").decode()
    assert ".visible .entry fagen_a_forward(" in ptx and '"a_forward.cu"' in ptx
    assert str(tmp_path) not in ptx
    found = resources_of(unit, tmp_path / "work")["fagen_a_forward"]
    assert found.registers and not found.spills
    assert embedded(unit, tmp_path / "work")[:4] == bytes.fromhex("50ed55ba"), "a fatbin, by its first bytes"
    broken = cuda_unit(replace(SOURCE, text=TEXT + "int f() { return x; }\n"), "sm_80", HEADERS, nvcc, COMPILER)
    with pytest.raises(CompileError, match=r'a_forward\.cu:3: identifier "x" is undefined \(compiling a forward\)'):
        compile_one(broken, tmp_path / "broken", tmp_path / "cache")


def test_without_nvcc_a_build_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_USUAL_FOLDERS", ())
    monkeypatch.setattr(toolchain, "_site_packages", list)
    monkeypatch.setenv("CXX", COMPILER.command[0])
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "a.yaml"
    path.write_text(
        "fagen: 1\nname: a\ntarget: sm_80\ndefaults: {backward: false}\nvariants: [{name: a, head_dim: 64}]\n"
    )
    with pytest.raises(ToolchainError, match="no nvcc: looked on PATH") as caught:
        build(path, out=tmp_path / "out")
    assert "pip install 'fagen[cuda]', or install the CUDA toolkit" in str(caught.value.problems[0].hint)
    assert not (tmp_path / "out").exists()
