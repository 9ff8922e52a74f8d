"""`fagen bench`: every variant of a module against its peers, forward and backward, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ..costs import ProblemSize, operations
from ..errors import Problem, UsageError
from ..runtime.module import Module
from ..runtime.variant import Variant
from ..size import LENGTHS, TOKENS, grid_size
from . import peers
from .calls import attention_call, backward_call, peer_call, variant_call
from .grids import entries
from .inputs import draw
from .machines import Machine, machine_for
from .measure import Context, How, Timing, interleave
from .memory import LENGTH, MemoryReport, training_memory
from .peers import first_line
from .report import DETERMINISTIC, BenchReport, Cell, case_of
from .schedules import UNFUSED, Schedules
from .twins import deterministic_twin

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """What to measure: ``sizes``, and ``tokens`` in sequences of each of ``lengths``, whose heads are as many as make
    the standard width; or ``grids``, of which ``lengths`` leaves those; where none of it is given, what is usual on the
    machine. ``how`` says what a sample is; ``forward`` and ``backward`` are the directions. ``flex`` adds compiled
    FlexAttention, whose first call compiles for a while. ``memory`` asks for that of a training step, not for times.
    """

    sizes: Sequence[ProblemSize] = ()
    tokens: int | None = None
    lengths: Sequence[int] = ()
    grids: Sequence[str] = ()
    variants: Sequence[str] = ()
    how: How = How()
    forward: bool = True
    backward: bool = True
    flex: bool = False
    rounds: int = 9
    seed: int = 0
    memory: bool = False

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
    the case that its rate is compared with, ``twin`` what computes the same gradients in a fixed order."""

    variant: Variant
    size: ProblemSize
    how: How
    flex: bool
    attention: bool = False
    aligned: str | None = None
    twin: Variant | None = None

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
    keep: Callable[[BenchReport], None] = lambda report: None,
) -> BenchReport:
    """Measure a published module, by eager calls: on this machine's CPU with torch's own thread count, or on a card.

    With ``others``, its kernels stand beside theirs and the unfused formula, and beside no one else. ``keep`` is given
    what is known so far after each item of work, so that a run that is cut off has not been in vain.

    Raises ValueError if ``options.variants`` names one that the module lacks, UsageError if a size cannot be meant, the
    module has nothing of the grids or no gradients that are to be measured alone, or the module is for a card that is
    not here. What ends with a RuntimeError is in the report, and the others are measured as long as the machine does;
    where nothing is, it is raised.
    """
    variants = [module.variant(name) for name in options.variants] or list(module.variants())
    if not options.forward:
        variants = _with_gradients(module, options, "--backward-only")
    machine = machine or machine_for(module)
    schedules = Schedules(module, others) if others else None
    work = list(
        _of_grids(module, variants, options, progress)
        if options.grids
        else _of_sizes(module, variants, options, machine)
    )
    with machine.in_use():
        report = BenchReport(
            machine=machine.title,
            torch=torch.__version__,
            threads=machine.threads,
            isa=machine.isa,
            peak=machine.peak(tuple(dict.fromkeys(item.variant.dtype for item in work))),
            cells=(),
            device=machine.kind,
            schedules=schedules.names if schedules else (),
        )
        first: RuntimeError | None = None
        for place, item in enumerate(work):
            progress(item.label)
            tell = partial(_tell, progress, item.label)
            failed: list[str] = []
            cells: list[Cell] = []
            try:
                cells.extend(_cells(module, item, options, machine, schedules, tell))
            except RuntimeError as error:
                failed = [f"{item.label}: {first_line(error)}"]
                first = first or error.with_traceback(None)  # whose frames hold tensors
            report = replace(report, cells=(*report.cells, *cells), failed=(*report.failed, *failed))
            if cells:
                keep(report)
            if failed and not machine.survives():
                if left := len(work) - place - 1:
                    lost = f"{machine.title} is of no more use to this process: {left} more are not measured"
                    report = replace(report, failed=(*report.failed, lost))
                break
    if first is not None and not report.cells:
        raise first
    return report


def memory(
    module: Module, options: Options, progress: Tell = lambda line: None, machine: Machine | None = None
) -> MemoryReport:
    """The peak memory of a training step of each variant that has gradients, in sequences of memory.LENGTH if
    ``options`` have no sizes. Raises as :func:`bench` does."""
    variants = _with_gradients(module, options, "--memory")
    machine = machine or machine_for(module)
    meter = machine.meter()
    if not (options.sizes or options.lengths):
        options = replace(options, lengths=(LENGTH,))
    work = [(variant, size) for variant in variants for size in options.sizes_of(variant, machine)]
    with machine.in_use():
        return training_memory(
            module,
            work,
            meter,
            machine.device,
            f"{machine.title}, torch {torch.__version__}",
            seed=options.seed,
            tell=progress,
            survives=machine.survives,
        )


def _with_gradients(module: Module, options: Options, option: str) -> list[Variant]:
    """The variants that have them. Raises UsageError where there is none, in the name of ``option``."""
    variants = [module.variant(name) for name in options.variants] or list(module.variants())
    found = [variant for variant in variants if variant.backward]
    if not found:
        raise UsageError(Problem(f"{option}: {module.name} has no gradients", hint="build it with `backward: true`"))
    return found


def _tell(progress: Tell, label: str, line: str) -> None:
    progress(f"{label}: {line}")


def _of_sizes(module: Module, variants: Sequence[Variant], options: Options, machine: Machine) -> Iterator[Item]:
    for variant in variants:
        twin = deterministic_twin(variant, module.variants())
        for size in options.sizes_of(variant, machine):
            yield Item(variant, size, options.how, options.flex, twin=twin)


def _of_grids(module: Module, variants: Sequence[Variant], options: Options, tell: Tell) -> Iterator[Item]:
    """Raises UsageError if none of the variants is in them."""
    wanted = entries(options.grids, options.lengths)
    free_first = sorted(variants, key=lambda variant: variant.deterministic)
    found = {
        function: next((variant for variant in free_first if function.matches(variant)), None)
        for function in dict.fromkeys(entry.function for entry in wanted)
    }
    twins = {
        function: variant and deterministic_twin(variant, module.variants()) for function, variant in found.items()
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
        # `attention` calls the deterministic one of two only if torch is asked for such.
        named = how.host or variant.deterministic
        yield Item(variant, entry.size, how, options.flex or entry.flex, not named, aligned, twins[entry.function])


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
        if item.how.host and not variant.deterministic:
            calls["attention"] = attention_call(module, variant, inputs, gradients)
        rivals = machine.peers(variant, size, inputs.params)
        if item.flex:
            try:
                rivals["flex"] = peers.flex(variant, size, inputs.params, machine.device)
            except RuntimeError as error:  # of making its block mask
                tell(f"without flex: {first_line(error)}")
        for name, peer in rivals.items():
            if peer is not None:
                calls[name] = peer_call(peer, variant, inputs, training)
        optional = list(rivals)
    for name in [name for name in optional if name in calls]:
        if why := _refusal(calls[name].run, calls[name].context):
            tell(f"without {name}: {why}")
            del calls[name]
    pairs = _admitted(variant, size, inputs.params, machine)

    def cell(direction: str, candidates: Mapping[str, Callable[[], object]]) -> Cell:
        contexts = {name: calls[name].context for name in candidates}
        timings = interleave(candidates, timer, rounds=options.rounds, contexts=contexts)
        return _cell(item, direction, operations(variant, pairs, direction), timings)

    if options.forward:
        yield cell("forward", {name: call.run for name, call in calls.items()})
    if not (gradients and options.backward):
        return
    if item.twin is not None:
        calls[DETERMINISTIC] = variant_call(module, item.twin, inputs, gradients)
    backward = {}
    for name, call in calls.items():
        if not call.differentiable:
            continue
        backward[name] = backward_call(call)
        if name in optional and (why := _refusal(backward[name], call.context)):
            tell(f"without {name} backward: {why}")
            del backward[name]
    yield cell("backward", backward)


def _refusal(run: Callable[[], object], context: Context) -> str:
    """See peers.refusal; for want of memory, too."""
    with context():
        try:
            return peers.refusal(run)
        except torch.OutOfMemoryError:
            pass
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
