"""`fagen bench`: every variant of a module against its peers, forward and backward, in one run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..costs import ProblemSize, operations
from ..runtime.check.cases import Case
from ..runtime.check.inputs import Inputs, draw
from ..runtime.module import Module
from ..runtime.reference import mask_matrix, trees
from ..runtime.variant import Variant
from . import peers
from .measure import Timing, interleave
from .peak import peak_flops
from .report import BenchReport, Cell


@dataclass(frozen=True)
class Options:
    """What to measure. ``flex`` adds compiled FlexAttention, whose first call compiles for a while."""

    sizes: Sequence[ProblemSize] = field(default_factory=lambda: (ProblemSize(), ProblemSize(q_len=4096, kv_len=4096)))
    variants: Sequence[str] = ()
    backward: bool = True
    flex: bool = False
    rounds: int = 9
    seed: int = 0


def bench(module: Module, options: Options, progress: Callable[[str], None] = lambda line: None) -> BenchReport:
    """Measure a published module. Times are of eager calls on this machine's CPU, with torch's own thread count.

    Raises ValueError if ``options.variants`` names one that the module lacks.
    """
    isa = module.manifest["isa"]["name"]
    threads = torch.get_num_threads()
    cells: list[Cell] = []
    for name in options.variants or [variant.name for variant in module.variants()]:
        variant = module.variant(name)
        for size in options.sizes:
            progress(f"{name}: B{size.batch} H{size.heads}/{size.kv_heads} S{size.q_len}x{size.kv_len}")
            cells += _cells(module.kernels[variant.name], size, options)
    return BenchReport(
        machine=_machine(),
        torch=torch.__version__,
        threads=threads,
        isa=isa,
        peak=peak_flops(isa, threads),
        cells=tuple(cells),
    )


def _cells(op: Any, size: ProblemSize, options: Options) -> Iterable[Cell]:
    variant: Variant = op.variant
    case = Case("bench", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads, runs=True)
    inputs = draw(variant, [tree for tree in trees(variant) if tree is not None], case, options.seed)
    shape = (size.batch, size.heads, size.kv_heads, size.q_len, size.kv_len)
    rivals = {"sdpa": peers.sdpa(variant, shape, inputs.params)}
    if options.flex:
        rivals["flex"] = peers.flex(variant, shape, inputs.params)
    forward, backward = _calls(op, inputs, {name: call for name, call in rivals.items() if call is not None})
    pairs = _admitted(variant, size, inputs)
    timings = interleave(forward, rounds=options.rounds)
    yield _cell(variant, "forward", size, operations(variant, pairs, "forward"), timings)
    if variant.backward and options.backward:
        timings = interleave(backward(), rounds=options.rounds)
        yield _cell(variant, "backward", size, operations(variant, pairs, "backward"), timings)


def _calls(
    op: Any, inputs: Inputs, rivals: Mapping[str, peers.Attention]
) -> tuple[dict[str, Callable[[], object]], Callable[[], dict[str, Callable[[], object]]]]:
    """The forward calls (inputs require grad: a training forward), and a maker of the backward calls."""
    variant: Variant = op.variant
    ours = [tensor.detach().requires_grad_(variant.backward) for tensor in (inputs.q, inputs.k, inputs.v)]
    extra = {**inputs.extras(), **inputs.params}
    swap = variant.layout == "bshd"
    theirs = [(t.detach().transpose(1, 2) if swap else t.detach()).contiguous().requires_grad_() for t in ours]
    forward: dict[str, Callable[[], object]] = {"fagen": lambda: op(*ours, **extra)}
    for name, call in rivals.items():
        forward[name] = partial(call, *theirs)

    def backward() -> dict[str, Callable[[], object]]:
        calls: dict[str, Callable[[], object]] = {}
        for name, call in forward.items():
            leaves = ours if name == "fagen" else theirs
            out = call()
            assert isinstance(out, torch.Tensor)
            d_out = torch.randn_like(out)
            calls[name] = partial(torch.autograd.grad, out, leaves, d_out, retain_graph=True)
        return calls

    return forward, backward


def _admitted(variant: Variant, size: ProblemSize, inputs: Inputs) -> float:
    """Pairs that the mask admits, over batches and heads."""
    pairs = float(size.batch * size.heads * size.q_len * size.kv_len)
    if variant.mask is None:
        return pairs
    allowed = mask_matrix(variant, size.batch, size.heads, size.q_len, size.kv_len, inputs.params)
    return pairs * float(allowed.sum(dtype=torch.float64)) / allowed.numel()


def _cell(
    variant: Variant, direction: str, size: ProblemSize, operations: float, timings: Mapping[str, Timing]
) -> Cell:
    return Cell(
        variant=variant.name,
        dtype=variant.dtype,
        direction=direction,
        batch=size.batch,
        heads=size.heads,
        kv_heads=size.kv_heads,
        q_len=size.q_len,
        kv_len=size.kv_len,
        head_dim=variant.head_dim,
        value_dim=variant.value_dim,
        operations=operations,
        seconds={name: timing.median for name, timing in timings.items()},
        spread={name: timing.spread for name, timing in timings.items()},
    )


def _machine() -> str:
    """The CPU's own name, from where the system keeps it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
