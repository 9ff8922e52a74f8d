"""What a training step holds at its peak: fagen's, beside what no step can do without, and the unfused formula's.

Inputs (q, k, v and params), outputs (o and lse) and gradients (of o, q, k and v) have to be somewhere. What fagen holds
beyond them is said in bytes, and as a part of what the gradient of q takes in float32.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from ..costs import ELEMENT_BYTES, ProblemSize
from ..runtime.module import Module
from ..runtime.variant import Variant
from ..size import size_text
from . import peers
from .calls import Call, peer_call, variant_call
from .inputs import Inputs, draw
from .peers import first_line
from .report import writing

LENGTH = 16384  # if nothing is said
_SHORTEST = 64  # that the unfused formula is tried at
_PAIR_BYTES = 32  # about what the unfused formula holds a pair, by autograd
_MIB = 2**20


@dataclass(frozen=True)
class Growth:
    """Bytes that a step takes at its peak beside what was there before: by torch's allocator, and ``outside``, of the
    card's memory behind its back; ``once`` are those of the latter kind that the first step took, for code and the
    like."""

    torch: int
    outside: int = 0
    once: int = 0


class Meter(Protocol):
    """How memory is measured."""

    def grown(self, step: Callable[[], object]) -> Growth:
        """Of a step, whose results live until it is over. Raises torch.OutOfMemoryError."""

    def dares(self, pairs: int) -> bool:
        """Whether matrices of so many pairs may be tried: whether it is told, at worst, that there is no room."""


@dataclass(frozen=True)
class CardMeter:
    """By torch's own counts, and by what the driver says is left of the card, which any library's allocations show in;
    so do those of other processes. ``cuda`` is torch.cuda."""

    cuda: Any

    def grown(self, step: Callable[[], object]) -> Growth:
        """See Meter."""
        before = self._outside()
        step()
        self._settle()
        after_first, allocated = self._outside(), self.cuda.memory_allocated()
        self.cuda.reset_peak_memory_stats()
        results = step()
        self.cuda.synchronize()
        grown = self.cuda.max_memory_allocated() - allocated
        outside = self._outside() - after_first
        del results
        return Growth(grown, max(outside, 0), max(after_first - before, 0))

    def dares(self, pairs: int) -> bool:
        """See Meter."""
        return True

    def _settle(self) -> None:
        gc.collect()
        self.cuda.synchronize()
        self.cuda.empty_cache()

    def _outside(self) -> int:
        """Bytes of the card in use that torch's allocator has not taken."""
        self.cuda.synchronize()
        free, total = self.cuda.mem_get_info()
        return int(total - free - self.cuda.memory_reserved())


class CpuMeter:
    """By what torch's profiler sees of its allocator."""

    def grown(self, step: Callable[[], object]) -> Growth:
        """See Meter."""
        step()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            results = step()
        assert seen.profiler is not None and seen.profiler.kineto_results is not None
        events = (each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]")
        changes = [each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]
        del results
        return Growth(max(itertools.accumulate(changes), default=0))

    def dares(self, pairs: int) -> bool:
        """See Meter: a CPU gives out what it has not, and ends the process that takes it."""
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return pairs * _PAIR_BYTES <= free // 2


@dataclass(frozen=True)
class Step:
    """The peak of one variant at one size, all in bytes. ``inputs``, ``outputs`` and ``gradients`` are what cannot be
    spared, ``dq`` is the gradient of q in float32. ``unfused`` is None where it is not known, and where it did not fit
    computed from two lengths, of which ``computed_from`` is the larger."""

    case: str
    inputs: int
    outputs: int
    gradients: int
    dq: int
    fagen: int
    outside: int
    once: int
    unfused: int | None = None
    computed_from: int | None = None

    @property
    def needed(self) -> int:
        """What no step can do without."""
        return self.inputs + self.outputs + self.gradients

    @property
    def beyond(self) -> float:
        """What fagen holds besides, in float32 gradients of q."""
        return (self.fagen + self.outside - self.needed) / self.dq


@dataclass(frozen=True)
class MemoryReport:
    """All steps of one run; ``failed`` has a line for each that ended with an error."""

    place: str
    steps: tuple[Step, ...] = ()
    failed: tuple[str, ...] = ()

    def rows(self) -> list[list[str]]:
        """A head, and a row a step, in MiB."""
        head = ["variant", "B H/Hk S", "needed", "fagen MiB", "outside", "beyond, of a float32 dQ", "unfused", "ratio"]
        return [head, *(_row(step) for step in self.steps)]

    def summary(self) -> list[str]:
        """For people who read one line."""
        lines = [f"on {self.place}"]
        if self.steps:
            most = max(self.steps, key=lambda step: step.beyond)
            once = max(step.once for step in self.steps) / _MIB
            lines = [
                f"beyond inputs, outputs and gradients: {most.beyond:.3f} of a float32 dQ at most ({most.case})",
                f"outside torch's allocator, taken by a first step and kept: {once:.1f} MiB at most",
                *lines,
            ]
        return lines

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars, in bytes."""
        steps = [{**asdict(step), "needed": step.needed, "beyond": round(step.beyond, 4)} for step in self.steps]
        return {"machine": self.place, "steps": steps, "failed": list(self.failed)}

    def write_json(self, path: Path) -> None:
        """The steps into a file, one a line. Raises LockError if it cannot be written."""
        lines = ",\n".join(f"  {json.dumps(each, ensure_ascii=False)}" for each in self.to_json()["steps"])
        with writing(path):
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _row(step: Step) -> list[str]:
    variant, _, size = step.case.partition(" ")
    unfused = "–" if step.unfused is None else f"{step.unfused / _MIB:.0f}"
    if step.computed_from is not None:
        unfused += f" (computed from S {step.computed_from})"
    return [
        variant,
        size,
        f"{step.needed / _MIB:.1f}",
        f"{step.fagen / _MIB:.1f}",
        f"{step.outside / _MIB:.1f}",
        f"{step.beyond:.3f}",
        unfused,
        "–" if step.unfused is None else f"{step.unfused / (step.fagen + step.outside):.1f}×",
    ]


def training_memory(
    module: Module,
    work: Sequence[tuple[Variant, ProblemSize]],
    meter: Meter,
    device: str,
    place: str,
    *,
    seed: int,
    tell: Callable[[str], None],
    survives: Callable[[], bool],
) -> MemoryReport:
    """A step of each variant at its size, on ``device``. One that ends with a RuntimeError is in the report, and the
    others are measured as long as the machine ``survives``; where it does not and none was, it is raised."""
    report = MemoryReport(place)
    for variant, size in work:
        case = f"{variant.name} {size_text(size)}"
        tell(f"{case}: memory of a training step")
        try:
            report = replace(report, steps=(*report.steps, _step(module, variant, size, meter, device, seed)))
        except RuntimeError as error:
            report = replace(report, failed=(*report.failed, f"{case}: {first_line(error)}"))
            if not survives():
                if not report.steps:
                    raise
                break
    return report


def _step(module: Module, variant: Variant, size: ProblemSize, meter: Meter, device: str, seed: int) -> Step:
    inputs = draw(variant, size, seed, device)
    grown, held = _training(variant_call(module, variant, inputs, gradients=True), meter)
    needed = {**_needed(variant, size), "inputs": _bytes(inputs.q, inputs.k, inputs.v, *inputs.extras.values())}
    extras = _bytes(*inputs.extras.values())
    unfused, computed_from = _unfused(variant, size, inputs, meter, device, seed)
    return Step(
        case=f"{variant.name} {size_text(size)}",
        **needed,
        dq=4 * inputs.q.numel(),
        fagen=held + extras + grown.torch,
        outside=grown.outside,
        once=grown.once,
        unfused=unfused,
        computed_from=computed_from,
    )


def _needed(variant: Variant, size: ProblemSize) -> dict[str, int]:
    element, rows = ELEMENT_BYTES[variant.dtype], size.batch * size.heads * size.q_len
    q, o = (rows * dim * element for dim in (variant.head_dim, variant.value_dim))
    keys = size.batch * size.kv_heads * size.kv_len * (variant.head_dim + variant.value_dim) * element
    return {"outputs": o + 4 * rows, "gradients": o + q + keys}


def _training(call: Call, meter: Meter) -> tuple[Growth, int]:
    """What a forward and a backward pass add to q, k, v and the gradient of o, and what those take."""
    with call.context():
        seed = torch.randn_like(call.run())

        def step() -> object:
            o = call.run()
            return o, torch.autograd.grad(o, call.leaves, seed)

        return meter.grown(step), _bytes(*call.leaves, seed)


def _unfused(
    variant: Variant, size: ProblemSize, inputs: Inputs, meter: Meter, device: str, seed: int
) -> tuple[int | None, int | None]:
    """The unfused formula's peak, and None; where it does not fit, what it comes to, and the length it is computed
    from. Beyond what grows with a length, it holds matrices of so many bytes a pair: two lengths tell both."""
    found: list[tuple[int, int]] = []  # query length and bytes, the longest first
    shorter = size
    while True:
        peak = None
        if meter.dares(shorter.batch * shorter.heads * shorter.q_len * shorter.kv_len):
            peak = _unfused_peak(variant, shorter, inputs if shorter == size else None, meter, device, seed)
        if peak is not None and shorter == size:
            return peak, None
        if peak is not None:
            found.append((shorter.q_len, peak))
        if len(found) == 2:
            break
        if min(shorter.q_len, shorter.kv_len) < 2 * _SHORTEST or shorter.q_len % 2 or shorter.kv_len % 2:
            return None, None
        shorter = replace(shorter, q_len=shorter.q_len // 2, kv_len=shorter.kv_len // 2)
    (length, peak), (half, half_peak) = found
    squares = (peak - 2 * half_peak) / 2  # of the half length
    times = size.q_len / half
    return round((half_peak - squares) * times + squares * times**2), length


def _unfused_peak(
    variant: Variant, size: ProblemSize, inputs: Inputs | None, meter: Meter, device: str, seed: int
) -> int | None:
    """None where it does not fit, or there is no such formula."""
    try:
        inputs = inputs or draw(variant, size, seed, device)
        peer = peers.unfused(variant, size, inputs.params, device)
        if peer is None:
            return None
        grown, held = _training(peer_call(peer, variant, inputs, gradients=True), meter)
        return held + _bytes(*inputs.extras.values()) + grown.torch + grown.outside
    except torch.OutOfMemoryError:
        pass  # the frames that held its tensors are gone only behind this block
    gc.collect()
    torch.cuda.empty_cache()
    return None


def _bytes(*tensors: object) -> int:
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
