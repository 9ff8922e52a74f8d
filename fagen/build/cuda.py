"""CUDA units: the commands that make a kernel's fatbin and the PTX for the emulator, and what ptxas says of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..render import Source
from ..toolchain import Compiler, Nvcc
from . import relative_lines
from .compile import Unit, object_name
from .keys import Headers, digest, object_key

PTX, SAID = ".ptx", ".txt"
_IMAGE = "fagen/host/image.S"
_FLAGS = ("-lineinfo", "-allow-unsupported-compiler")  # the host compiler is only asked to preprocess
# Told of the registers, and to save them, more or less: kernels need nearly all, and one too many is a store and loads
# in every tile. What spills nowhere was found by trying.
_SAVING, _SAVING_WARPGROUPS = {"forward": 8, "backward": 3}, {"forward": 5, "backward": 2}


@dataclass(frozen=True)
class Resources:
    """What one kernel takes, by ptxas. Bytes but for ``registers``; stack, spills and static shared memory are of a
    thread, a thread and a block. ``serialized`` says why products of warpgroups wait for each other, "" if they do not.
    """

    registers: int
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0
    shared: int = 0
    serialized: str = ""

    @property
    def spills(self) -> bool:
        """Whether registers went to memory."""
        return bool(self.spill_stores or self.spill_loads)

    def __str__(self) -> str:
        spilled = f"spills {self.spill_stores} bytes and reads {self.spill_loads} back" if self.spills else "no spills"
        stack = f", {self.stack} bytes of stack" if self.stack else ""
        shared = f", {self.shared} bytes of static shared memory" if self.shared else ""
        waits = f", products wait for each other: {self.serialized}" if self.serialized else ""
        return f"{self.registers} registers{stack}{shared}, {spilled}{waits}"


def cuda_unit(source: Source, target: str, headers: Headers, nvcc: Nvcc, compiler: Compiler) -> Unit:
    """The unit of one direction of a variant for ``target``, as "sm_80".

    Its object holds the fatbin (machine code for the target, and PTX for cards to come), its start being
    ``image_symbol(...)``.
    """
    number = target.removeprefix("sm_")
    level = (_SAVING_WARPGROUPS if target == "sm_90a" else _SAVING)[source.direction]
    assembler = ("-Xptxas", f"-v,--register-usage-level={level}")
    both = f"arch=compute_{number},code=[sm_{number},compute_{number}]"
    image = headers.files[_IMAGE].decode()
    key = object_key(
        source.text,
        source.flags,
        headers,
        compiler=f"{nvcc.identity}, {compiler.identity}",
        extra=[both, *_FLAGS, *assembler, digest(image), image_symbol(source.variant, source.direction)],
    )
    ptx, fatbin = f"{key}{PTX}", f"{key}.fatbin"
    # The compiler that nvcc calls to preprocess: ours, if it can be named by one word.
    host = ("-ccbin", compiler.command[0]) if len(compiler.command) == 1 else ()
    start = (str(nvcc.path), *host, *(flag for flag in _FLAGS if flag not in source.flags))
    symbol = (f"-DFAGEN_SYMBOL={image_symbol(source.variant, source.direction)}", f'-DFAGEN_IMAGE="{fatbin}"')
    return Unit(
        source.name,
        f"{source.variant} {source.direction}",
        source.text,
        tuple(source.flags),
        key,
        beside=(PTX, SAID),
        commands=(
            (*start, *source.flags, f"-arch=compute_{number}", "-Iinclude", "-ptx", source.name, "-o", ptx),
            (sys.executable, "-I", "-S", relative_lines.__file__, ptx),
            (str(nvcc.path), *host, *_FLAGS, "-gencode", both, *assembler, "-fatbin", ptx, "-o", fatbin),
            (*compiler.command, *symbol, "-c", f"include/{_IMAGE}", "-o", object_name(key)),
        ),
    )


def image_symbol(variant: str, direction: str) -> str:
    """What the host unit calls the start of a fatbin."""
    return f"fagen_{variant}_{direction}_image"


def resources(said: str) -> dict[str, Resources]:
    """By kernel, what ``ptxas -v`` printed of it."""
    found: dict[str, dict[str, Any]] = {}
    kernel: dict[str, Any] = {}
    for line in said.splitlines():
        if match := re.search(r"Compiling entry function '([^']+)'", line):
            kernel = found.setdefault(match[1], {})
        elif match := re.search(r"wgmma\.mma_async instructions are serialized (.*) the function '([^']+)'", line):
            found.setdefault(match[2], {})["serialized"] = match[1].removesuffix(" for").removesuffix(" in")
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel |= zip(("stack", "spill_stores", "spill_loads"), map(int, match.groups()), strict=True)
        elif match := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(match[1])
            if match := re.search(r"(\d+) bytes smem", line):
                kernel["shared"] = int(match[1])
    return {name: Resources(**values) for name, values in found.items() if "registers" in values}


def resources_of(unit: Unit, work: Path) -> dict[str, Resources]:
    """Those of a unit that is compiled, in the private folder ``work``."""
    return resources((work / f"{unit.key}{SAID}").read_text(encoding="utf-8", errors="replace"))


def ptx_of(unit: Unit, work: Path) -> bytes:
    """Its PTX."""
    return (work / f"{unit.key}{PTX}").read_bytes()


def resources_from_json(data: Mapping[str, Any]) -> dict[str, Resources]:
    """What a manifest keeps of them."""
    return {name: Resources(**values) for name, values in data.items()}
