"""How host code loads and launches kernels on a card: a driver of our own answers, and says what was asked of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fagen.errors import ToolchainError
from fagen.resources import templates_dir
from fagen.toolchain import find_compiler, find_nvcc, find_torch

HERE = Path(__file__).parent / "cuda_host"
COMPILER = find_compiler().command


def compiled(output: Path, source: str, *flags: str) -> Path:
    """A library or program of one of the sources here."""
    torch = find_torch()
    command = [*COMPILER, "-std=c++17", "-O0", "-Wall", "-Wextra", "-Werror", HERE / source, "-o", output]
    command += [f"-I{templates_dir() / 'include'}", f"-isystem{torch.include_dirs[0]}", *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda_host")
    (folder / "old").mkdir()
    compiled(folder / "libcuda.so.1", "driver.cpp", "-shared", "-fPIC")
    compiled(folder / "old" / "libcuda.so.1", "driver.cpp", "-shared", "-fPIC", "-DOLD")
    compiled(folder / "libtorch_cuda.so", "driver.cpp", "-shared", "-fPIC", "-DTORCH", "-Wl,-soname,libtorch_cuda.so")
    library = find_torch().library_dir
    compiled(folder / "launch", "launch.cpp", f"-L{library}", "-ltorch_cpu", "-lc10", "-ldl", f"-Wl,-rpath,{library}")
    return folder


def said(place: Path, *, torch: bool = True, card: int = 80, drivers: str = ".", **environ: str) -> list[str]:
    """What the program prints, a line each."""
    command = [str(place / "launch"), *([str(place / "libtorch_cuda.so")] if torch else [])]
    libraries = {"LD_LIBRARY_PATH": str(place / drivers), "FAKE_CARD": str(card)}
    done = subprocess.run(
        command, env={**os.environ, **libraries, **environ}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_a_kernel_is_loaded_once_and_launched_on_torchs_stream(place: Path) -> None:
    launch = "block 64 1 1, shared 50000, stream 0x57, attributes 0, extra (nil), params 7 8"
    # What a capture forbids is done beside it; launches are not, or the graph would lack them.
    beside, captured = "capture mode 2 after 0", "capture mode 0 after 2"
    assert said(place) == [
        beside,
        "retain context of 41",
        captured,
        "push",
        beside,
        "load the fatbin",
        "kernel fagen_a_forward of 0x11b",
        "attribute 8 = 50000 on 41",
        captured,
        "stream of 1",
        f"launch 0x3e: grid 12 1 1, {launch}",
        "pop",
        "push",
        "stream of 1",
        f"launch 0x3e: grid 12 1 1, {launch}",
        "pop",
        "push",
        beside,
        "kernel fagen_a_tile_counts of 0x11b",
        captured,
        "stream of 1",
        f"launch 0x3e: grid 12 1 1, {launch.replace('64', '128').replace('50000', '0')}",
        "pop",
        beside,
        "retain context of 40",
        captured,
        "push",
        beside,
        "kernel fagen_a_forward of 0x11b",
        "attribute 8 = 50000 on 40",
        captured,
        "stream of 0",
        f"launch 0x3e: grid 12 1 1, {launch}",
        "pop",
    ]


def test_blocks_lie_along_the_one_axis_that_has_room_for_them(place: Path) -> None:
    """Two tiles of 128 queries in each of five heads; the other axes end at 65,535."""
    for batch in (7_000, 214_748_364):
        assert f"grid {batch * 10} 1 1, " in said(place, BATCH=str(batch))[-2]
    for batch in (214_748_365, 2**62 // 10, 2**63 // 10):
        assert said(place, BATCH=str(batch))[-1] == (
            "a: batch, heads and length make more than 2^31 - 1 tiles of 128 queries"
        )


def test_clusters_are_an_attribute_and_tensor_maps_the_drivers(place: Path) -> None:
    launch, attribute, *_, encode, made = said(place, CLUSTER="1")[-5:]
    assert launch.startswith("launch 0x3e: grid 12 1 1") and "attributes 1, " in launch
    assert attribute == "attribute 4 of the launch: 1 2 1"
    assert encode == "encode 9 of rank 2 at 0x40: 64 by 100, 128 apart, box 32 16, steps 1 2, 0 3 2 1"
    assert made == "map of 7e to 7e"


def test_kernels_that_may_run_at_once_have_counters_of_their_own(place: Path) -> None:
    lines = [line for line in said(place, COUNTERS="1") if not line.startswith(("push", "pop", "retain", "stream of"))]
    made = [
        "capture mode 2 after 0",  # a capture is no place for it
        "allocate 16384",
        "create stream with 1",
        "set 4096 words at 1000 to 0 on 0x5e",
        "synchronize 0x5e",
        "destroy 0x5e",
        "capture mode 0 after 2",
    ]
    assert lines[2:9] == made, "that device 1 was opened comes before"
    given = [line.removeprefix("counter ") for line in lines if line.startswith("counter ")]
    assert "the capture is lost" not in lines
    # Of streams, the second time too; one of its own for each launch that is captured; of another device.
    assert given[:8] == ["0x4ffc", "0x4ff8", "0x4ffc", "0x4ff4", "0x4ff0", "0x4fec", "0x4fe8", "0x14ffc"]
    assert len(set(given)) == 7 + 4096 and "(nil)" not in given and given[-1] == "0x4ffc"
    assert lines.count("allocate 16384") == 3  # one a device, and more when they are given


FAULTS = {
    "no driver": ({"drivers": "none"}, "no cuInit: libcuda.so.1 cannot be loaded: install NVIDIA's driver"),
    "old driver": ({"drivers": "old"}, "no cuLibraryLoadData: libcuda.so.1 is older than CUDA 12: update NVIDIA's"),
    "torch without CUDA": ({"torch": False}, "no aoti_torch_get_current_cuda_stream: this process has a torch without"),
    "older card": (
        {"card": 75},
        "a_forward is built for sm_80, and Fake Card is sm_75: build the spec for that target",
    ),
    "newer card, exact": ({"card": 90, "EXACT": "1"}, "a_forward is built for sm_80a, and Fake Card is sm_90"),
    "launch": (
        {"FAIL": "cuLaunchKernelEx"},
        "CUDA_ERROR_INVALID_VALUE (invalid argument), launching fagen_a_forward on 12 blocks of 64 threads with 50000 "
        "bytes of shared memory",
    ),
    "load": ({"FAIL": "cuLibraryLoadData"}, "(invalid argument), loading the machine code of a_forward"),
    "kernel": ({"FAIL": "cuLibraryGetKernel"}, "(invalid argument), looking for the kernel fagen_a_forward"),
    "memory": ({"FAIL": "cuKernelSetAttribute"}, "setting aside 50000 bytes of shared memory for fagen_a_forward"),
    "less memory": (
        {"FAIL": "cuKernelSetAttribute", "card": 86},
        "for fagen_a_forward, which is built for sm_80, on a card that is sm_86: build the spec for that target",
    ),
    "map": ({"FAIL": "cuTensorMapEncodeTiled", "CLUSTER": "1"}, "(invalid argument), encoding a tensor map of rank 2"),
    "device": ({"FAIL": "cuDeviceGet"}, "(invalid argument), looking for device 1"),
    "context": ({"FAIL": "cuDevicePrimaryCtxRetain"}, "(invalid argument), opening device 1"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_errors_say_what_was_being_done(case: str, place: Path) -> None:
    """The context that was made current is let go of as well."""
    how, words = FAULTS[case]
    if case == "no driver" and Path("/dev/nvidia0").exists():
        pytest.skip("there is a driver here")
    lines = said(place, **how)  # type: ignore[arg-type]
    assert lines[-1].startswith("fagen: ") and words in lines[-1]
    assert lines.count("push") == lines.count("pop")
    modes = [line for line in lines if line.startswith("capture mode")]
    assert not modes or modes[-1] == "capture mode 0 after 2"


def test_a_newer_card_will_do(place: Path) -> None:
    assert "launch 0x3e" in said(place, card=90)[-2]


def test_cards_are_found_without_torch(place: Path) -> None:
    program = "import sys; from fagen.runtime.cards import cards; print(*cards()); assert 'torch' not in sys.modules"

    def found(drivers: str, **environ: str) -> str:
        more = {"LD_LIBRARY_PATH": str(place / drivers), "FAKE_CARD": "120", **environ}
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **more}, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert found(".") == "Fake Card (sm_120) Fake Card (sm_120)"
    assert found(".", FAIL="cuInit") == found(".", FAIL="cuDeviceGetCount") == ""
    if not Path("/dev/nvidia0").exists():
        assert found("none") == ""


def test_the_drivers_types_are_those_of_its_header(tmp_path: Path) -> None:
    try:
        root = find_nvcc().path.resolve().parents[1]
    except ToolchainError as error:
        pytest.skip(str(error))
    for folder in (root / "include", Path("/usr/local/cuda/include"), *root.glob("targets/*/include")):
        if (folder / "cuda.h").is_file():
            compiled(tmp_path / "launch.o", "launch.cpp", "-c", "-DCUDA_HEADER", f"-isystem{folder}")
            return
    pytest.skip("no cuda.h beside nvcc")
