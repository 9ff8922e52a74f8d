"""`fagen bench`: every variant of a module against its peers, forward and backward, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ..costs import ProblemSize, operations
from ..runtime.check.cases import Case
from ..runtime.check.inputs import generator
from ..runtime.check.params import draw_params
from ..runtime.fakes import DTYPES
from ..runtime.kernel import Kernel
from ..runtime.module import Module
from ..runtime.reference import trees
from ..runtime.variant import Variant
from ..size import LENGTHS, TOKENS, grid_size
from . import peers
from .machines import Machine, machine_for
from .measure import Timing, interleave
from .report import BenchReport, Cell

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to measure: ``sizes``, and ``tokens`` in sequences of each of ``lengths``, whose heads are as many as make
    the standard width; where none of it is given, what is usual on the machine. ``flex`` adds compiled FlexAttention,
    whose first call compiles for a while."""

    sizes: Sequence[ProblemSize] = ()
    tokens: int | None = None
    lengths: Sequence[int] = ()
    variants: Sequence[str] = ()
    backward: bool = True
    flex: bool = False
    rounds: int = 9
    seed: int = 0

    def sizes_of(self, variant: Variant, machine: Machine) -> list[ProblemSize]:
        """Those of a variant. Raises UsageError if a length does not divide the tokens."""
        tokens = self.tokens or TOKENS
        lengths = self.lengths
        if self.tokens and not lengths:
            lengths = [length for length in LENGTHS if tokens % length == 0] or [tokens]
        found = [*self.sizes, *(grid_size(length, variant.head_dim, tokens) for length in lengths)]
        return found or list(machine.sizes(variant))


def bench(
    module: Module, options: Options, progress: Tell = lambda line: None, machine: Machine | None = None
) -> BenchReport:
    """Measure a published module, by eager calls: on this machine's CPU with torch's own thread count, or on a card.

    Raises ValueError if ``options.variants`` names one that the module lacks, UsageError if a size cannot be meant, or
    the module is for a card that is not here.
    """
    variants = [module.variant(name) for name in options.variants] or list(module.variants())
    machine = machine or machine_for(module)
    work = [(variant, size) for variant in variants for size in options.sizes_of(variant, machine)]
    cells: list[Cell] = []
    with machine.in_use():
        for variant, size in work:
            label = f"{variant.name}: B{size.batch} H{size.heads}/{size.kv_heads} S{size.q_len}x{size.kv_len}"
            progress(label)
            tell = partial(_tell, progress, label)
            cells += _cells(module.kernels[variant.name], size, options, machine, tell)
        peak = machine.peak(tuple(dict.fromkeys(variant.dtype for variant in variants)))
    return BenchReport(
        machine=machine.title,
        torch=torch.__version__,
        threads=machine.threads,
        isa=machine.isa,
        peak=peak,
        cells=tuple(cells),
        device=machine.kind,
    )


def _tell(progress: Tell, label: str, line: str) -> None:
    progress(f"{label}: {line}")


def _cells(kernel: Kernel, size: ProblemSize, options: Options, machine: Machine, tell: Tell) -> Iterator[Cell]:
    variant = kernel.variant
    inputs = draw_inputs(variant, size, options.seed, machine.device)
    rivals = machine.peers(variant, size, inputs.params)
    if options.flex:
        rivals["flex"] = peers.flex(variant, size, inputs.params, machine.device)
    calls = _calls(kernel, inputs, {name: peer for name, peer in rivals.items() if peer is not None}, machine)
    for name in [name for name in rivals if name in calls]:
        if why := peers.refusal(calls[name].run):
            tell(f"without {name}: {why}")
            del calls[name]
    pairs = _admitted(variant, size, inputs, machine)
    timings = interleave({name: call.run for name, call in calls.items()}, machine.timer, rounds=options.rounds)
    yield _cell(variant, "forward", size, operations(variant, pairs, "forward"), timings)
    if variant.backward and options.backward:
        timings = interleave(_backward_calls(calls), machine.timer, rounds=options.rounds)
        yield _cell(variant, "backward", size, operations(variant, pairs, "backward"), timings)


@dataclass(frozen=True)
class Inputs:
    """q, k and v in the variant's layout; ``extras`` are the params and the sink, if there is one."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    params: dict[str, torch.Tensor]
    extras: dict[str, torch.Tensor]


def draw_inputs(variant: Variant, size: ProblemSize, seed: int, device: str) -> Inputs:
    """Normal numbers, made on the device; params as the check draws them."""
    case = Case("bench", size.q_len, size.kv_len, size.batch, size.heads, size.kv_heads, runs=True)
    known = [tree for tree in trees(variant) if tree is not None]
    drawn = draw_params(variant, known, case, generator(seed, case.name))
    params = {name: tensor.to(device) for name, tensor in drawn.items()}
    source = torch.Generator(device).manual_seed(seed)

    def normal(heads: int, length: int, dim: int) -> torch.Tensor:
        lengths = (length, heads) if variant.layout == "bshd" else (heads, length)
        return torch.randn(size.batch, *lengths, dim, generator=source, device=device).to(DTYPES[variant.dtype])

    sink = {"sink": torch.randn(size.heads, generator=source, device=device)} if variant.sink else {}
    return Inputs(
        q=normal(size.heads, size.q_len, variant.head_dim),
        k=normal(size.kv_heads, size.kv_len, variant.head_dim),
        v=normal(size.kv_heads, size.kv_len, variant.value_dim),
        params=params,
        extras={**sink, **params},
    )


@dataclass(frozen=True)
class _Call:
    """A forward call; ``leaves`` are its q, k and v, which require grad where it has a backward pass."""

    run: Callable[[], torch.Tensor]
    leaves: tuple[torch.Tensor, ...]

    @property
    def differentiable(self) -> bool:
        return self.leaves[0].requires_grad


def _calls(kernel: Kernel, inputs: Inputs, rivals: Mapping[str, peers.Peer], machine: Machine) -> dict[str, _Call]:
    """Everyone's forward call, as in training where there is a backward pass, or the machine says so for the peers."""
    variant = kernel.variant
    own: Any = kernel  # each variant has a signature of its own

    def leaves(gradients: bool, *, heads_first: bool) -> tuple[torch.Tensor, ...]:
        tensors = [tensor.detach() for tensor in (inputs.q, inputs.k, inputs.v)]
        if heads_first:
            tensors = [tensor.transpose(1, 2).contiguous() for tensor in tensors]
        return tuple(tensor.requires_grad_(gradients) for tensor in tensors)

    ours = leaves(variant.backward, heads_first=False)
    training = variant.backward or machine.training
    calls = {"fagen": _Call(partial(own, *ours, **inputs.extras), ours)}
    for name, peer in rivals.items():
        theirs = leaves(peer.differentiable and training, heads_first=variant.layout == "bshd")
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


def _admitted(variant: Variant, size: ProblemSize, inputs: Inputs, machine: Machine) -> float:
    """Pairs that the mask admits, over batches and heads."""
    allowed = peers.admitted(variant, size, inputs.params, machine.device)
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
