"""`fagen bench`: every variant of a module against its peers, forward and backward, in one run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ..costs import ProblemSize, operations
from ..runtime.check.cases import Case
from ..runtime.check.inputs import Inputs, draw
from ..runtime.kernel import Kernel
from ..runtime.module import Module
from ..runtime.reference import trees
from ..runtime.variant import Variant
from ..target import ISAS
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
    # Variants may be built for several instruction sets; the limit is that of the most capable.
    built_for = module.manifest["isa"]["name"].split(", ")
    isa = next(name for name in ISAS if name in built_for)
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


def _cells(kernel: Kernel, size: ProblemSize, options: Options) -> Iterator[Cell]:
    variant = kernel.variant
    case = Case("bench", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads, runs=True)
    inputs = draw(variant, [tree for tree in trees(variant) if tree is not None], case, options.seed)
    rivals = {"sdpa": peers.sdpa(variant, size, inputs.params)}
    if options.flex:
        rivals["flex"] = peers.flex(variant, size, inputs.params)
    calls = _calls(kernel, inputs, {name: peer for name, peer in rivals.items() if peer is not None})
    pairs = _admitted(variant, size, inputs)
    timings = interleave({name: call.run for name, call in calls.items()}, rounds=options.rounds)
    yield _cell(variant, "forward", size, operations(variant, pairs, "forward"), timings)
    if variant.backward and options.backward:
        timings = interleave(_backward_calls(calls), rounds=options.rounds)
        yield _cell(variant, "backward", size, operations(variant, pairs, "backward"), timings)


@dataclass(frozen=True)
class _Call:
    """A forward call; ``leaves`` are its q, k and v, which require grad where it has a backward pass."""

    run: Callable[[], torch.Tensor]
    leaves: tuple[torch.Tensor, ...]

    @property
    def differentiable(self) -> bool:
        return self.leaves[0].requires_grad


def _calls(kernel: Kernel, inputs: Inputs, rivals: Mapping[str, peers.Peer]) -> dict[str, _Call]:
    """Everyone's forward call, as in training where there is a backward pass."""
    variant = kernel.variant
    own: Any = kernel  # each variant has a signature of its own

    def leaves(differentiable: bool, *, heads_first: bool) -> tuple[torch.Tensor, ...]:
        tensors = [tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v)]
        if heads_first:
            tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
        return tuple(tensor.requires_grad_(differentiable and variant.backward) for tensor in tensors)

    ours = leaves(True, heads_first=False)
    calls = {"fagen": _Call(partial(own, *ours, **inputs.extras()), ours)}
    for name, peer in rivals.items():
        theirs = leaves(peer.differentiable, heads_first=variant.layout == "bshd")
        calls[name] = _Call(partial(peer.call, *theirs), theirs)
    return calls


def _backward_calls(calls: Mapping[str, _Call]) -> dict[str, Callable[[], object]]:
    """The gradients of q, k and v, over one graph again and again."""
    found: dict[str, Callable[[], object]] = {}
    for name, call in calls.items():
        if call.differentiable:
            o = call.run()
            found[name] = partial(torch.autograd.grad, o, call.leaves, torch.randn_like(o), retain_graph=True)
    return found


def _admitted(variant: Variant, size: ProblemSize, inputs: Inputs) -> float:
    """Pairs that the mask admits, over batches and heads."""
    allowed = peers.admitted(variant, size, inputs.params)
    pairs = size.batch * size.heads * size.q_len * size.kv_len
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
