"""What fagen knows of each target: facts, as data. Validation, planning, dispatch, docs and tests read this table.

A target whose schedule has no templates yet is listed with ``built=False``; :func:`fagen.plan.plan` says so by name.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

_GUIDE = "CUDA C++ Programming Guide, Compute Capabilities, technical specifications per compute capability"
_PTX = "PTX ISA, Target ISA Notes of the instruction"
_TURING = "Turing Tuning Guide"
_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture, and the Guide's Arithmetic Instructions: throughput"


@dataclass(frozen=True)
class Dims:
    """The sizes a head dim may have: from ``least`` to ``most``, a multiple of ``multiple``."""

    least: int
    most: int
    multiple: int = 1

    def __contains__(self, size: int) -> bool:
        return self.least <= size <= self.most and size % self.multiple == 0

    def __str__(self) -> str:
        step = f", multiples of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.least} to {self.most}{step}"


@dataclass(frozen=True)
class Rates:
    """What the whole card does at most: ``multiprocessors`` at ``clock`` Hz; of each a clock, ``products`` operations
    of matrix products in 16 bits, ``special`` results of the special-function unit, ``instructions`` of threads."""

    multiprocessors: int
    clock: float
    products: int
    special: int
    instructions: int


@dataclass(frozen=True)
class Device:
    """Limits of one streaming multiprocessor and of a block on it.

    Memory in bytes; ``tensor_memory`` is 0 before Blackwell. ``rates`` are of the largest card, None where they are not
    known.
    """

    shared_per_sm: int
    shared_per_block: int
    warps_per_sm: int
    tensor_memory: int = 0
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    rates: Rates | None = None


@dataclass(frozen=True)
class Target:
    """One thing to build for.

    ``schedule`` names the folder of templates; ``instruction`` what multiplies matrices; ``device`` is None for a CPU.
    ``sources`` say where the facts are from.
    """

    name: str
    title: str
    schedule: str
    built: bool
    instruction: str
    dtypes: tuple[str, ...]
    head_dim: Dims
    value_dim: Dims
    sources: tuple[str, ...]
    device: Device | None = None


def _gpu(
    name: str,
    title: str,
    schedule: str,
    instruction: str,
    device: Device,
    *,
    dtypes: tuple[str, ...] = ("bf16", "f16"),
    sources: tuple[str, ...] = (_GUIDE, _PTX),
) -> Target:
    # Rows of 16 bytes are what cp.async, TMA and ldmatrix move.
    dims = Dims(8, 256, 8)
    return Target(name, title, schedule, schedule in ("mma", "wgmma"), instruction, dtypes, dims, dims, sources, device)


_KIB = 1024
_MMA16 = "mma.sync.m16n8k16"
_LARGE = Device(228 * _KIB, 227 * _KIB, 64, rates=Rates(132, 1.98e9, 4096, 16, 128))
_BLACKWELL = Device(228 * _KIB, 227 * _KIB, 64, tensor_memory=256 * _KIB)
_SMALL = Device(100 * _KIB, 99 * _KIB, 48)

_ALL = (
    Target(
        name="cpu",
        title="the CPU, by the vectors of its instruction set",
        schedule="cpu",
        built=True,
        instruction="vector fused multiply-add, or bf16 dot products where there are any",
        dtypes=("f32", "bf16", "f16"),
        head_dim=Dims(1, 1024),
        value_dim=Dims(1, 1024),
        sources=("GCC manual, Vector Extensions and x86 Options",),
    ),
    _gpu(
        "sm_75",
        "Turing (T4)",
        "mma",
        "mma.sync.m16n8k8",
        Device(64 * _KIB, 64 * _KIB, 32),
        dtypes=("f16",),
        sources=(_GUIDE, _PTX, _TURING),
    ),
    _gpu("sm_80", "Ampere (A100)", "mma", _MMA16, Device(164 * _KIB, 163 * _KIB, 64)),
    _gpu("sm_86", "Ampere (A10, RTX 30)", "mma", _MMA16, _SMALL),
    _gpu("sm_87", "Ampere (Jetson Orin)", "mma", _MMA16, Device(164 * _KIB, 163 * _KIB, 48)),
    _gpu("sm_89", "Ada (L4, RTX 40)", "mma", _MMA16, _SMALL),
    _gpu("sm_90a", "Hopper (H100, H200)", "wgmma", "wgmma.mma_async", _LARGE, sources=(_GUIDE, _PTX, _HOPPER)),
    _gpu("sm_100a", "Blackwell (B200)", "tcgen05", "tcgen05.mma", _BLACKWELL),
    _gpu("sm_103a", "Blackwell (B300)", "tcgen05", "tcgen05.mma", _BLACKWELL),
    _gpu("sm_110a", "Blackwell (Jetson Thor)", "tcgen05", "tcgen05.mma", _BLACKWELL),
    _gpu("sm_120", "Blackwell (RTX 50)", "mma", _MMA16, _SMALL),
    _gpu("sm_121", "Blackwell (DGX Spark)", "mma", _MMA16, _SMALL),
)
TARGETS: MappingProxyType[str, Target] = MappingProxyType({target.name: target for target in _ALL})


@dataclass(frozen=True)
class Isa:
    """One instruction set of the cpu target.

    ``flags`` are for g++ and clang++; ``features`` are what the CPU must have, as ``__builtin_cpu_supports`` calls
    them; ``lanes`` float32 numbers fill a vector; ``registers`` is how many vectors the kernel can name; ``bf16_dots``
    says whether pairs of bf16 are multiplied and added in float32 by one instruction.
    """

    name: str
    flags: tuple[str, ...]
    features: tuple[str, ...]
    lanes: int
    registers: int
    bf16_dots: bool = False


_AVX2 = ("avx2", "fma")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")


def _flags(features: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"-m{feature}" for feature in features)


_ISAS = (
    Isa("avx512_bf16", _flags((*_AVX512, "avx512bf16")), (*_AVX512, "avx512bf16"), 16, 32, bf16_dots=True),
    Isa("avx512", _flags(_AVX512), _AVX512, 16, 32),
    Isa("avx2", _flags(_AVX2), _AVX2, 8, 16),
    Isa("portable", (), (), 4, 16),
)
# From the most capable to the one that every CPU has.
ISAS: MappingProxyType[str, Isa] = MappingProxyType({isa.name: isa for isa in _ISAS})


def resolve_isa(name: str) -> str:
    """``name``, or for "native" the most capable ISA of this machine. Raises KeyError for an unknown name."""
    return native_isa() if name == "native" else ISAS[name].name


@cache
def native_isa() -> str:
    """The most capable ISA of this machine; portable where the machine does not tell."""
    if not is_x86():
        return "portable"
    present = set(_cpu_flags())
    return next(isa.name for isa in _ISAS if present.issuperset(isa.features))


def is_x86() -> bool:
    """Whether this machine is of the kind that every ISA but portable is for."""
    return platform.machine().lower() in ("x86_64", "amd64")


def _cpu_flags() -> Iterator[str]:
    """The CPU's features, spelled as ``__builtin_cpu_supports`` does."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            # The kernel writes avx512_bf16 and the compiler avx512bf16; avx512f and the like agree.
            yield from (flag.replace("avx512_", "avx512") for flag in value.split())
            return
