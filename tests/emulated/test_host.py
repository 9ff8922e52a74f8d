"""Host code that encodes tensor maps and launches clusters, built without CUDA, on the emulator."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fagen.emulate import driver
from fagen.resources import templates_dir
from fagen.toolchain import find_compiler, find_torch

from .compiled import ptx_of
from .launches import ints


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("host")
    torch_files = find_torch()
    command = [*find_compiler().command, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    command += [str(Path(__file__).with_name("host.cpp")), "-o", str(folder / "host.so")]
    command += [f"-I{templates_dir() / 'include'}", f"-isystem{torch_files.include_dirs[0]}"]
    command += [f"-L{torch_files.library_dir}", "-ltorch_cpu", "-lc10", "-ldl"]
    subprocess.run(command, check=True)
    (folder / "ptx").mkdir()
    shutil.copy(ptx_of("clusters"), folder / "ptx")
    loaded = ctypes.CDLL(str(folder / "host.so"))
    loaded.sum_tiles.restype = loaded.ring.restype = ctypes.c_char_p
    return loaded


@pytest.fixture
def emulator(library: ctypes.CDLL) -> Iterator[driver.Emulator]:
    path = Path(library._name)
    with driver.use(SimpleNamespace(device="cuda", name="host", folder=path.parent, library=path, emulator=None)) as it:
        yield it


def kernel(name: str) -> bytes:
    """The whole name of an entry of which this is a part."""
    (found,) = re.findall(rf"\.entry (\w*{name}\w*)\(", ptx_of("clusters").read_text())
    return found.encode()


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def test_a_map_that_host_code_encodes(library: ctypes.CDLL, emulator: driver.Emulator) -> None:
    x, out = torch.ones(128, 32), torch.zeros(2, 32)
    assert library.sum_tiles(kernel("shared_tilesILi0E"), address(x), address(out), 2, 32) == b""
    assert emulator.launches == 1 and torch.equal(out, torch.full((2, 32), 128.0))
    message = library.sum_tiles(kernel("shared_tilesILi0E"), address(x), address(out), 2, 64)
    assert message == b"fagen: emulated tensor map: boxDim[0]: 256 bytes, more than the 128 that the swizzle spans"
    assert emulator.launches == 1


def test_clusters_that_host_code_asks_for(library: ctypes.CDLL, emulator: driver.Emulator) -> None:
    for size in (1, 4):
        out = ints(8 * 32)
        assert library.ring(kernel("ringILi0E"), address(out), 8, size) == b""
        assert out.tolist() == [100 * ((n - 1) % size) + t for n in range(8) for t in range(32)]
    message = library.ring(kernel("ringILi0E"), address(out), 8, 3)
    assert message.startswith(b"fagen: emulated launch: limits: a grid of (8, 1, 1), no whole number of clusters")


def test_without_an_emulator(library: ctypes.CDLL) -> None:
    message = library.ring(kernel("ringILi0E"), address(ints(32)), 1, 1)
    assert b"fagen module clusters is built for CUDA cards (sm_90a)" in message
