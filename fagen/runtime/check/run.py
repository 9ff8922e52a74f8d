"""Runs a variant's cases and judges them: the one place where a verdict is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..reference import trees
from ..variant import Variant
from .call import Function, MemoryFault, forward, forward_and_backward
from .cases import Case, Tiling, cases, named
from .compare import Expected, expect
from .inputs import Inputs, draw
from .judging import describe
from .machine import Machine
from .mutants import Judged, Score, hunt
from .report import FAILED, PARTIAL, PASSED, Failure, VariantReport, repeat
from .visits import visit_fault


@dataclass
class _Run:
    """One variant's check under way."""

    kernel: Function
    tiling: Tiling
    seed: int
    started: Callable[[str], None]
    machine: Machine = Machine()
    done: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.variant: Variant = self.kernel.variant
        self.trees = [tree for tree in trees(self.variant) if tree is not None]

    def case(self, case: Case) -> Judged:
        """Run and judge one case."""
        self.started(case.name)
        self.done.append(case.name)
        inputs = draw(self.variant, self.trees, case, self.seed)
        expected = expect(self.variant, inputs, gradients=self.variant.backward)
        for n, order in enumerate(self.machine.orders(case, self.seed)):
            before = len(self.failures)
            self._run(case, inputs, expected, first=n == 0)
            if len(self.failures) > before:
                if order:
                    worst = self.failures[before]
                    self.failures[before] = replace(worst, message=f"{worst.message} ({order})")
                break
        return Judged(case, inputs, expected)

    def _run(self, case: Case, inputs: Inputs, expected: Expected, *, first: bool) -> None:
        """Run and judge it once; what cannot differ from one order to the next only in the ``first``."""
        kernel, device = self.kernel, self.machine.device
        try:
            if first and (fault := visit_fault(kernel, self.tiling, case, inputs, device)):
                self.failures.append(Failure(case.name, fault, measure="tiles"))
            self._judge(case, expected, forward(kernel, case, inputs, device))
            if self.variant.backward:
                got = forward_and_backward(kernel, case, inputs, device)
                self._judge(case, expected, got)
                if self.variant.deterministic:
                    self._same(case, got, forward_and_backward(kernel, case, inputs, device))
            elif first and case.where == "plain":
                self._judge(case, expected, forward(kernel, case, inputs, device, into_out=False))
        except MemoryFault as fault:
            self.failures.append(Failure(case.name, str(fault), measure="memory"))
        except Exception as error:
            if found := self.machine.fault():
                self.failures.append(Failure(case.name, found, measure="fault"))
            else:
                self.failures.append(Failure(case.name, f"{type(error).__name__}: {error}"))

    def _judge(self, case: Case, expected: Expected, got: dict[str, Tensor]) -> None:
        deviations = expected.judge(got)
        for deviation in deviations:
            self.worst[deviation.output] = max(self.worst.get(deviation.output, 0.0), deviation.ratio)
        failed = [deviation for deviation in deviations if not deviation.passed]
        if failed and not any(failure.case == case.name for failure in self.failures):
            worst = max(failed, key=lambda deviation: deviation.ratio)
            self.failures.append(describe(case, worst, expected, got[worst.output], self.tiling))

    def _same(self, case: Case, first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
        pairs = {name: (tensor.nan_to_num(), second[name].nan_to_num()) for name, tensor in first.items()}
        changed = [name for name, (once, again) in pairs.items() if not torch.equal(once, again)]
        if changed:
            message = f"deterministic, but {', '.join(changed)} changed from one run to the next"
            self.failures.append(Failure(case.name, message, changed[0], "repeat"))


def run_case(kernel: Function, tiling: Tiling, case: Case, seed: int) -> tuple[Failure, ...]:
    """What is wrong with ``kernel``, whose tiles are ``tiling``, in one case of the caller's own making."""
    check = _Run(kernel, tiling, seed, lambda case: None)
    check.case(case)
    return tuple(check.failures)


def run(
    kernel: Function,
    tiling: Tiling,
    *,
    seed: int,
    level: str = "auto",
    case: str | None = None,
    budget: float | None = None,
    command: str = "",
    started: Callable[[str], None] = lambda case: None,
    machine: Machine | None = None,
) -> VariantReport:
    """The verdict on ``kernel``, whose tiles are ``tiling``.

    ``level`` is "auto" or "full"; ``case`` names the one case to run instead (KeyError if there is none of that name).
    ``budget`` in seconds: cases that it leaves no time for make the verdict "partial". ``started`` hears of each case.
    ``command`` is the beginning of what repeats the check, up to the variant's name. ``machine`` runs the kernels, if
    it is not the CPU.
    """
    machine = machine or Machine()
    begun = time.monotonic()
    deadline = None if budget is None else begun + budget
    check = _Run(kernel, tiling, seed, started, machine)
    wanted: Sequence[Case] = [named(case, tiling)] if case else cases(tiling, level)
    judged: list[Judged] = []
    skipped: list[str] = []
    for one in wanted:
        if deadline is not None and time.monotonic() > deadline:
            skipped.append(one.name)
            continue
        judged.append(check.case(one))
    score = Score()
    if not case and not check.failures:
        score = hunt(check.variant, judged, seed, check.case, deadline)
    verdict = FAILED if check.failures else PARTIAL if skipped or score.survivors or score.untried else PASSED
    failed = check.failures[0].case if check.failures else None
    report = VariantReport(
        variant=check.variant.name,
        verdict=verdict,
        seed=seed,
        level=level,
        cases=tuple(check.done),
        skipped=(*skipped, *((f"{score.untried} mutants",) if score.untried else ())),
        worst=check.worst,
        failures=tuple(check.failures),
        mutants=score.total,
        killed=score.killed,
        equivalent=score.equivalent,
        survivors=tuple(score.survivors),
        command=repeat(command, check.variant.name, seed, level, failed, machine.title),
        on=machine.title,
        seconds=time.monotonic() - begun,
    )
    if level != "full" or case or check.failures:
        return report
    return report.counted(*machine.unrun(check.variant))
