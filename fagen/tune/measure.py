"""A folder of candidates to results: each is checked, and those that are right are measured in turns with each other.

Runs where the card is, and needs torch alone. A check is a process of its own, so that a kernel that hangs or reads
where it must not takes nothing else down. One case is enough to be measured; the fastest takes the whole check of a
build, and if it fails that, the next one does: there are many candidates, and few that could win.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..bench.calls import backward_call, variant_call
from ..bench.command import import_module
from ..bench.inputs import Inputs, draw
from ..bench.machines import Machine, machine_for
from ..bench.measure import How, Timing, interleave
from ..bench.run import Options
from ..costs import ProblemSize
from ..errors import Problem, UsageError
from ..runtime.check.drive import Wish, check_variants
from ..runtime.check.report import FAILED, VariantReport
from ..runtime.check.where import DEVICE, Where, find_where
from ..runtime.module import Module
from ..runtime.variant import Variant
from ..size import size_text
from .folder import Candidate, Sweep, Swept
from .results import Checked, Results, Timed
from .winners import ranking

SEED = 20
_FIRST_CASE = "several-tiles"  # that all must pass before they are run beside others; whoever would win takes the rest


@dataclass
class Bench:
    """Where and how candidates are run; tests put others in the places of these."""

    machine_for: Callable[[Module], Machine] = machine_for
    load: Callable[[Path], Module] = lambda folder: import_module(folder)._module
    check: Callable[..., list[VariantReport]] = check_variants
    clock: Callable[[], float] = time.monotonic


@dataclass
class Measuring:
    """One run: ``options`` says at which sizes and in how many rounds; nothing is begun after ``budget`` seconds."""

    folder: Path
    sweep: Sweep
    results: Results
    options: Options = Options()
    budget: float | None = None
    tell: Callable[[str], None] = lambda line: None
    bench: Bench = field(default_factory=Bench)

    def run(self) -> bool:
        """Check and measure all that ``results`` lack. Whether that is all there is: False if the budget was over.

        Raises UsageError where there is no card that runs the candidates, or ``options`` name no variant.
        """
        self.begun = self.bench.clock()
        known = list(dict.fromkeys(swept.variant for swept in self.sweep.variants))
        for name in self.options.variants:
            if name not in known:
                raise UsageError(Problem(f"--variant: no variant {name}", hint=f"there are {', '.join(known)}"))
        wanted = [
            each for each in self.sweep.variants if not self.options.variants or each.variant in self.options.variants
        ]
        return all(self._variant(swept) for swept in wanted if swept.candidates)

    def _over(self) -> bool:
        return self.budget is not None and self.bench.clock() - self.begun > self.budget

    def _variant(self, swept: Swept) -> bool:
        if not self._check(swept, swept.candidates, first=True):
            return False
        sound = [each for each in swept.candidates if self.results.checked[each.key].verdict != FAILED]
        if not sound:
            self.tell(f"{swept.label}: no candidate passes the check")
            return True
        modules = {name: self.bench.load(self.folder / name) for name in dict.fromkeys(each.module for each in sound)}
        machine = self.bench.machine_for(modules[sound[0].module])
        kernels = {each.key: (modules[each.module], modules[each.module].variant(each.name)) for each in sound}
        with machine.in_use():
            for size in self.options.sizes_of(kernels[sound[0].key][1], machine):
                if not self._time(swept, sound, kernels, size, machine):
                    return False
        return self._check_winner(swept)

    def _check(self, swept: Swept, candidates: Sequence[Candidate], *, first: bool) -> bool:
        """Check those that are not yet, by one case at ``first``, else by all; False if the budget was over before."""
        for module in dict.fromkeys(each.module for each in candidates):
            some = [each for each in candidates if each.module == module and not self._is_checked(each, first)]
            if some and self._over():
                return False
            if some:
                self.tell(
                    f"{swept.label}: checks {', '.join(each.name for each in some)}" + " to the end" * (not first)
                )
                self._check_some(module, some, self._where(swept.target), _FIRST_CASE if first else None)
        return True

    def _is_checked(self, candidate: Candidate, first: bool) -> bool:
        found = self.results.checked.get(candidate.key)
        return found is not None and (first or found.complete or found.verdict == FAILED)

    def _where(self, target: str) -> Where:
        on = None if target.startswith("cpu") else DEVICE
        try:
            return find_where(target.split()[0], on, cuda=torch.version.cuda is not None, emulator=None)
        except LookupError as error:
            raise UsageError(Problem(str(error))) from None

    def _check_some(self, module: str, some: Sequence[Candidate], where: Where, case: str | None) -> None:
        wish = Wish(SEED, case=case, command=f"fagen check {module} -v", where=where)
        reports = self.bench.check(self.folder / module, [each.name for each in some], wish)
        for each, report in zip(some, reports, strict=True):
            message = "; ".join(str(failure) for failure in report.failures[:1])
            if report.verdict == FAILED:
                self.tell(f"  {each.name} fails the check: {message}")
            self.results.add(Checked(each.key, report.verdict, case is None and not report.skipped, message))

    def _time(
        self,
        swept: Swept,
        sound: Sequence[Candidate],
        kernels: Mapping[str, tuple[Module, Variant]],
        size: ProblemSize,
        machine: Machine,
    ) -> bool:
        """Measure all at one size, unless just these have been; False if the budget was over before."""
        known = self.results.timed.get((swept.shape, swept.target, swept.direction, size_text(size)))
        if known is not None and known.seconds.keys() == kernels.keys() and known.card == machine.title:
            return True
        if self._over():
            return False
        self.tell(f"{swept.label}: measures {len(kernels)} candidates at {size_text(size)}")
        _, variant = next(iter(kernels.values()))  # they differ in nothing that inputs depend on
        inputs = draw(variant, size, self.options.seed, machine.device)
        calls = {key: _call(module, variant, inputs, swept.direction) for key, (module, variant) in kernels.items()}
        timings: dict[str, Timing] = interleave(calls, machine.timer(How()), rounds=self.options.rounds)
        self.results.add(
            Timed(
                variant=swept.variant,
                shape=swept.shape,
                target=swept.target,
                version=self.sweep.version,
                size=size_text(size),
                card=machine.title,
                date=datetime.date.today().isoformat(),
                own=next((each.key for each in sound if each.name == swept.own), ""),
                names={each.key: each.name for each in sound},
                tiles={each.key: each.tiles for each in sound},
                seconds={key: timing.median for key, timing in timings.items()},
                direction=swept.direction,
            )
        )
        return True

    def _check_winner(self, swept: Swept) -> bool:
        """Check the fastest to the end, and the next ones until one passes."""
        by_key = {each.key: each for each in swept.candidates}
        for key in ranking(self.results, swept.shape, swept.target, swept.direction):
            if not self._check(swept, [by_key[key]], first=False):
                return False
            if self.results.checked[key].verdict != FAILED:
                return True
        self.tell(f"{swept.label}: no candidate passes the check")
        return True


def _call(module: Module, variant: Variant, inputs: Inputs, direction: str) -> Callable[[], object]:
    """The gradients of one graph, where those are tuned. Else a forward call; of a variant with a backward pass, whose
    tiles are of both directions, a training step."""
    forward = variant_call(module, variant, inputs, variant.backward)
    if direction == "backward":
        return backward_call(forward)
    if not variant.backward:
        return forward.run
    seed = torch.randn_like(forward.run())
    return lambda: torch.autograd.grad(forward.run(), forward.leaves, seed)
