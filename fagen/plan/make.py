"""The planner's one entry."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import PlanError, Problem
from ..runtime.variant import Variant
from ..target import TARGETS, Target
from .model import Plan
from .schedules import schedule


def plan(variant: Variant, target: str = "cpu", isa: str = "native", *, spec: str = "") -> Plan:
    """How to build ``variant`` for ``target``; ``isa`` (of the cpu target) counts where the variant leaves it open.

    ``spec`` is the name of the spec it is from, for the first line of its sources. Raises PlanError, with everything
    that is wrong, if the target cannot do what the variant asks or has no schedule yet.
    """
    facts = TARGETS.get(target)
    if facts is None:
        raise PlanError(Problem(f"{variant.name}: unknown target `{target}`", hint=f"targets are {', '.join(TARGETS)}"))
    problems = list(_sizes(variant, facts))
    if not facts.built:
        problems.append(Problem(f"{variant.name}: the schedule `{facts.schedule}` for {target} is not built yet"))
    if facts.built:
        try:
            made = schedule(facts.schedule).make(variant, facts, isa, spec)
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)
    return made


def _sizes(variant: Variant, target: Target) -> Iterator[Problem]:
    if variant.dtype not in target.dtypes:
        taken = ", ".join(target.dtypes)
        yield Problem(f"{variant.name}: {target.name} has no {variant.dtype} kernels", hint=f"it takes {taken}")
    for key, size, dims in (
        ("head_dim", variant.head_dim, target.head_dim),
        ("value_dim", variant.value_dim, target.value_dim),
    ):
        if size not in dims:
            yield Problem(f"{variant.name}: {key} {size} is not built for {target.name}", hint=f"it takes {dims}")
