"""The planner's one entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..errors import PlanError, Problem
from ..runtime.variant import Tiles, Variant
from ..target import TARGETS, Target
from .model import Plan
from .schedules import schedule
from .tuned import Tuned


def plan(
    variant: Variant,
    target: str = "cpu",
    isa: str = "native",
    *,
    spec: str = "",
    tuned: Tuned | None = None,
    tuned_backward: Tuned | None = None,
) -> Plan:
    """How to build ``variant`` for ``target``; ``isa`` (of the cpu target) counts where the variant leaves it open.

    ``spec`` is the name of the spec it is from, for the first line of its sources. ``tuned`` decides where the variant
    has no tiles of its own, ``tuned_backward`` where it has no backward tiles; what is of no use there is no error:
    "tuning" in the plan's ``why`` says so. Raises PlanError, with everything that is wrong, if the target cannot do
    what the variant asks or has no schedule yet.
    """
    facts = TARGETS.get(target)
    if facts is None:
        raise PlanError(Problem(f"{variant.name}: unknown target `{target}`", hint=f"targets are {', '.join(TARGETS)}"))
    problems = list(_sizes(variant, facts))
    if not facts.built:
        problems.append(Problem(f"{variant.name}: the schedule `{facts.schedule}` for {target} is not built yet"))
    if facts.built:
        try:
            made = _tuned(variant, facts, isa, spec, {"tiles": tuned, "backward_tiles": tuned_backward})
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)
    return made


def _tuned(variant: Variant, target: Target, isa: str, spec: str, tuned: Mapping[str, Tuned | None]) -> Plan:
    """The plan with what tuning found for these fields of the variant, or else without it."""
    make = schedule(target.schedule).make
    made: Plan | None = None
    chosen, told = variant, []
    for key, found in tuned.items():
        if found is None or getattr(variant, key) != Tiles():
            continue
        problem = found.problem
        if found.tiles is not None:
            change: dict[str, Any] = {key: found.tiles}
            tried = replace(chosen, **change)
            try:
                made = make(tried, target, isa, spec)
                chosen = tried
                continue
            except PlanError as error:
                refused = "; ".join(each.message.removeprefix(f"{variant.name}: ") for each in error.problems)
                problem = f"{variant.name}: {problem}{refused}"
        told.append(problem)
    if made is None:
        made = make(variant, target, isa, spec)
    why = {**made.why, "tuning": "; ".join(told)} if told else made.why
    return replace(made, variant=variant, why=MappingProxyType(dict(why)))


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
