"""What a module is measured on: this machine's CPU, or a card of it, each with its timer, its peers and its limit."""

from __future__ import annotations

import contextlib
import gc
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ..costs import ProblemSize
from ..errors import Problem, UsageError
from ..runtime.cards import Card, cards
from ..runtime.fakes import DTYPES
from ..runtime.module import Module
from ..runtime.variant import Variant
from ..size import LENGTHS, grid_size
from ..target import ISAS
from . import peers
from .events import FLUSHED, CardTimer, GraphTimer, HostTimer, SustainedTimer
from .measure import How, Timer, WallTimer, interleave
from .memory import CardMeter, CpuMeter, Meter
from .peak import peak_flops
from .peers import Peer

_ORDER = 8192  # of the matrices whose product is a card's limit


class Machine(Protocol):
    """``device`` is torch's name of where tensors are; ``kind`` "cpu" or "cuda"; ``title`` says which machine it is."""

    kind: str
    device: str
    title: str
    isa: str  # what the kernels are built for
    threads: int | None
    training: bool  # peers compute what a backward pass needs, as fagen always does, though there may be none

    def timer(self, how: How) -> Timer:
        """What takes such samples. Raises UsageError if there is none on this machine."""

    def sizes(self, variant: Variant) -> Sequence[ProblemSize]:
        """What is measured if nothing is said."""

    def peers(self, variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor]) -> dict[str, Peer | None]:
        """torch's own attention, by name; None where it has no such function."""

    def peak(self, dtypes: Sequence[str]) -> dict[str, float]:
        """Operations a second that this machine can do, by dtype."""

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """The context to measure in."""

    def meter(self) -> Meter:
        """What counts memory."""

    def survives(self) -> bool:
        """Whether more can be measured after an error; frees what it left behind."""


class Cpu:
    """This machine's CPU, with torch's own thread count."""

    kind = device = "cpu"
    training = False

    def __init__(self, manifest: Mapping[str, Any]):
        # Variants may be built for several instruction sets; the limit is that of the most capable.
        built_for = manifest["isa"]["name"].split(", ")
        self.isa = next(name for name in ISAS if name in built_for)
        self.threads: int | None = torch.get_num_threads()
        self.title = _cpu_name()

    def timer(self, how: How) -> Timer:
        """See Machine."""
        if how.graph or how.host:
            option = "--graph" if how.graph else "--host"
            raise UsageError(Problem(f"{option} is of modules for cards", hint=f"leave out {option}"))
        return WallTimer() if how.sustained is None else WallTimer(how.sustained)

    def sizes(self, variant: Variant) -> Sequence[ProblemSize]:
        """See Machine."""
        return ProblemSize(), ProblemSize(q_len=4096, kv_len=4096)

    def peers(self, variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor]) -> dict[str, Peer | None]:
        """See Machine."""
        return {"sdpa": peers.sdpa(variant, size, params)}

    def peak(self, dtypes: Sequence[str]) -> dict[str, float]:
        """See Machine: multiplying and adding in registers."""
        return peak_flops(self.isa, torch.get_num_threads())

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """See Machine."""
        return contextlib.nullcontext()

    def meter(self) -> Meter:
        """See Machine."""
        return CpuMeter()

    def survives(self) -> bool:
        """See Machine."""
        return True


class Gpu:
    """One of this machine's cards."""

    kind = "cuda"
    training = True
    threads: int | None = None

    def __init__(self, card: Card, target: str):
        self.isa = target
        self.index = card.index
        self.device = f"cuda:{card.index}"
        self.title = f"{card}, {_versions()}"
        with self.in_use():
            self.flushed = torch.empty(FLUSHED, dtype=torch.uint8, device=self.device)

    def timer(self, how: How) -> Timer:
        """See Machine."""
        if how.host:
            return HostTimer(torch.cuda)
        timer: Timer = CardTimer(torch.cuda, self.flushed)
        if how.sustained is not None:
            timer = SustainedTimer(torch.cuda, how.sustained)
        return GraphTimer(torch.cuda, timer) if how.graph else timer

    def sizes(self, variant: Variant) -> Sequence[ProblemSize]:
        """See Machine."""
        return [grid_size(length, variant.head_dim) for length in LENGTHS]

    def peers(self, variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor]) -> dict[str, Peer | None]:
        """See Machine."""
        return {name: peers.fused(variant, size, name) for name in peers.BACKENDS}

    def peak(self, dtypes: Sequence[str]) -> dict[str, float]:
        """See Machine: torch's product of two large matrices."""
        found = {}
        timer = self.timer(How())
        for dtype in dtypes:
            a, b = (torch.randn(_ORDER, _ORDER, device=self.device).to(DTYPES[dtype]) for _ in range(2))
            timing = interleave({"product": lambda a=a, b=b: a @ b}, timer, rounds=5)["product"]  # type: ignore[misc]
            found[dtype] = 2 * _ORDER**3 / timing.p20
        return found

    def in_use(self) -> contextlib.AbstractContextManager[Any]:
        """See Machine."""
        context: contextlib.AbstractContextManager[Any] = torch.cuda.device(self.index)
        return context

    def meter(self) -> Meter:
        """See Machine."""
        return CardMeter(torch.cuda)

    def survives(self) -> bool:
        """See Machine: a fault of a kernel leaves a process no card."""
        gc.collect()
        try:
            torch.cuda.synchronize(self.index)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False
        return True


def machine_for(module: Module) -> Machine:
    """Where a module is measured. Raises UsageError where there is no card that runs it."""
    if module.device == "cpu":
        return Cpu(module.manifest)
    return Gpu(find_card(module.name, module.manifest["target"]), module.manifest["target"])


def find_card(name: str, target: str) -> Card:
    """The best card for ``target``. Raises UsageError where there is none, or torch cannot use it."""
    there = cards()
    fitting = [card for card in there if card.runs(target)]
    if not fitting:
        seen = f"there are {', '.join(map(str, there))}" if there else "there is none at all"
        raise UsageError(
            Problem(
                f"{name} is built for {target}, and no card here runs it: {seen}",
                hint="copy its folder, and fagen's, to a machine that has one: python3 -m fagen.bench FOLDER needs "
                "torch and nothing else",
            )
        )
    card = min(fitting, key=lambda card: card.target != target)
    if not torch.cuda.is_available():
        raise UsageError(
            Problem(
                f"{card} would run {name}, but this torch cannot use it",
                hint="install torch with CUDA, for this driver or an older one",
            )
        )
    return card


def _versions() -> str:
    """The driver's and the libraries'."""
    parts = []
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        if match := re.search(r"\s(\d+\.\d+[.\d]*)\s", text):
            parts.append(f"driver {match[1]}")
    except OSError:
        pass
    parts.append(f"CUDA {torch.version.cuda}")
    if number := torch.backends.cudnn.version():
        parts.append(f"cuDNN {number // 10000}.{number // 100 % 100}.{number % 100}")
    return ", ".join(parts)


def _cpu_name() -> str:
    """The CPU's own name, from where the system keeps it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
