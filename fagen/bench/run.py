"""`fagen bench`: every variant of a module against its peers, forward and backward, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..costs import ProblemSize, operations
from ..errors import Problem, UsageError
from ..runtime.module import Module
from ..runtime.variant import Variant
from ..size import LENGTHS, TOKENS, grid_size
from . import peers
from .calls import Call, attention_call, backward_calls, peer_call, variant_call
from .grids import entries
from .inputs import draw
from .machines import Machine, machine_for
from .measure import How, Timing, interleave
from .report import BenchReport, Cell, case_of
from .schedules import UNFUSED, Schedules

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to measure: ``sizes``, and ``tokens`` in sequences of each of ``lengths``, whose heads are as many as make
    the standard width; or ``grids``, of which ``lengths`` leaves those; where none of it is given, what is usual on the
    machine. ``how`` says what a sample is. ``flex`` adds compiled FlexAttention, whose first call compiles for a while.
    """

    sizes: Sequence[ProblemSize] = ()
    tokens: int | None = None
    lengths: Sequence[int] = ()
    grids: Sequence[str] = ()
    variants: Sequence[str] = ()
    how: How = How()
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


@dataclass(frozen=True)
class Item:
    """What becomes a cell, or two with the backward pass. Of a grid, fagen is called by ``attention``; ``aligned`` is
    the case that its rate is compared with."""

    variant: Variant
    size: ProblemSize
    how: How
    flex: bool
    attention: bool = False
    aligned: str | None = None

    @property
    def label(self) -> str:
        """For people who wait."""
        size = self.size
        how = f" {self.how}" if str(self.how) else ""
        return f"{self.variant.name}: B{size.batch} H{size.heads}/{size.kv_heads} S{size.q_len}x{size.kv_len}{how}"


def bench(
    module: Module,
    options: Options,
    progress: Tell = lambda line: None,
    machine: Machine | None = None,
    others: Sequence[Module] = (),
) -> BenchReport:
    """Measure a published module, by eager calls: on this machine's CPU with torch's own thread count, or on a card.

    With ``others``, its kernels stand beside theirs and the unfused formula, and beside no one else.

    Raises ValueError if ``options.variants`` names one that the module lacks, UsageError if a size cannot be meant, the
    module has nothing of the grids, or the module is for a card that is not here. A RuntimeError of a later cell than
    the first ends the run: a card may be of no more use then.
    """
    variants = [module.variant(name) for name in options.variants] or list(module.variants())
    machine = machine or machine_for(module)
    schedules = Schedules(module, others) if others else None
    work = list(_of_grids(variants, options, progress) if options.grids else _of_sizes(variants, options, machine))
    cells: list[Cell] = []
    with machine.in_use():
        peak = machine.peak(tuple(dict.fromkeys(item.variant.dtype for item in work)))
        failed = ""
        for item in work:
            progress(item.label)
            try:
                cells += _cells(module, item, options, machine, schedules, partial(_tell, progress, item.label))
            except RuntimeError as error:
                if not cells:
                    raise
                failed = f"{item.label}: {str(error).splitlines()[0]}"
                break
    return BenchReport(
        machine=machine.title,
        torch=torch.__version__,
        threads=machine.threads,
        isa=machine.isa,
        peak=peak,
        cells=tuple(cells),
        device=machine.kind,
        schedules=schedules.names if schedules else (),
        failed=failed,
    )


def _tell(progress: Tell, label: str, line: str) -> None:
    progress(f"{label}: {line}")


def _of_sizes(variants: Sequence[Variant], options: Options, machine: Machine) -> Iterator[Item]:
    for variant in variants:
        for size in options.sizes_of(variant, machine):
            yield Item(variant, size, options.how, options.flex)


def _of_grids(variants: Sequence[Variant], options: Options, tell: Tell) -> Iterator[Item]:
    """Raises UsageError if none of the variants is in them."""
    wanted = entries(options.grids, options.lengths)
    found = {
        function: next((variant for variant in variants if function.matches(variant)), None)
        for function in dict.fromkeys(entry.function for entry in wanted)
    }
    if not any(found.values()):
        raise UsageError(Problem(f"--grid: the module computes nothing of {', '.join(options.grids)}"))
    for function, variant in found.items():
        if variant is None and not options.variants:
            tell(f"without {function}: the module has no such variant")
    for entry in wanted:
        variant = found[entry.function]
        if variant is None:
            continue
        how = options.how if str(options.how) else entry.how
        beside = entry.aligned and found[entry.aligned.function]
        aligned = case_of(beside.name, entry.aligned.size, str(how)) if entry.aligned and beside else None
        yield Item(variant, entry.size, how, options.flex or entry.flex, not how.host, aligned)


def _cells(
    module: Module, item: Item, options: Options, machine: Machine, schedules: Schedules | None, tell: Tell
) -> Iterator[Cell]:
    variant, size = item.variant, item.size
    inputs = draw(variant, size, options.seed, machine.device)
    timer = machine.timer(item.how)
    forward_only = item.how.graph or item.how.host or schedules is not None
    # Everyone's forward call, as in training where there is a backward pass, or the machine says so for the peers.
    gradients = variant.backward and not forward_only
    training = (variant.backward or machine.training) and not item.how.host
    if schedules is not None:
        calls = schedules.calls(variant, size, inputs, machine.device)
        optional = [UNFUSED]
    else:
        fagen = attention_call if item.attention else variant_call
        calls = {"fagen": fagen(module, variant, inputs, gradients)}
        if item.how.host:
            calls["attention"] = attention_call(module, variant, inputs, gradients)
        rivals = machine.peers(variant, size, inputs.params)
        if item.flex:
            rivals["flex"] = peers.flex(variant, size, inputs.params, machine.device)
        for name, peer in rivals.items():
            if peer is not None:
                calls[name] = peer_call(peer, variant, inputs, training)
        optional = list(rivals)
    for name in [name for name in optional if name in calls]:
        if why := _refusal(calls[name], fits=name != UNFUSED):
            tell(f"without {name}: {why}")
            del calls[name]
    pairs = _admitted(variant, size, inputs.params, machine)
    contexts = {name: call.context for name, call in calls.items()}

    def cell(direction: str, candidates: Mapping[str, Callable[[], object]]) -> Cell:
        timings = interleave(candidates, timer, rounds=options.rounds, contexts=contexts)
        return _cell(item, direction, operations(variant, pairs, direction), timings)

    yield cell("forward", {name: call.run for name, call in calls.items()})
    if gradients and options.backward:
        yield cell("backward", backward_calls(calls))


def _refusal(call: Call, *, fits: bool) -> str:
    """See peers.refusal; what need not ``fits`` in memory may be refused for that."""
    with call.context():
        try:
            return peers.refusal(call.run)
        except torch.OutOfMemoryError:
            if fits:
                raise
    torch.cuda.empty_cache()
    return "it does not fit into the card's memory"


def _admitted(variant: Variant, size: ProblemSize, params: Mapping[str, torch.Tensor], machine: Machine) -> float:
    """Pairs that the mask admits, over batches and heads."""
    allowed = peers.admitted(variant, size, params, machine.device)
    pairs = size.batch * size.heads * size.q_len * size.kv_len
    return pairs * float(allowed.sum(dtype=torch.float64)) / allowed.numel()


def _cell(item: Item, direction: str, operations: float, timings: Mapping[str, Timing]) -> Cell:
    variant, size = item.variant, item.size
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
        p20={name: timing.p20 for name, timing in timings.items()},
        p80={name: timing.p80 for name, timing in timings.items()},
        how=str(item.how),
        aligned=item.aligned,
    )
