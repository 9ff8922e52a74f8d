"""The plans and sources of a whole spec, or everything that its targets and templates cannot do."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from ..errors import FagenError, PlanError, Problem
from ..plan import Plan, plan
from ..plan.tuned import PLAN_VERSION, Tuned, shape_class, tiles_in_words
from ..render import Source, render
from ..resources import tuning_file
from ..runtime.cards import Card, cards
from ..runtime.variant import Tiles, Variant
from ..spec import Spec
from ..spec.tuning import TuningFile, read_tuning
from ..target import TARGETS, resolve_isa


def plan_spec(spec: Spec, variants: Sequence[Variant]) -> list[Plan]:
    """The plan of every variant for every target, with what the tuning file beside the spec says.

    Raises one :class:`PlanError` with all that the target cannot do.
    """
    tuning = read_spec_tuning(spec.path)
    found = cards() if "native" in spec.targets else ()
    targets = {_native(found) if name == "native" else name: name for name in spec.targets}
    problems = [
        problem for name in targets if (problem := _refuse_target(name, spec, targets[name], found)) is not None
    ]
    if not problems and len(spec.targets) > 1:
        problems = [_at(spec, spec.targets[1], "a module is built for one target so far", "write a spec for each")]
    plans = []
    for target, variant in product(() if problems else targets, variants):
        try:
            tuned = _tuned(variant, target, spec.isa, tuning)
            backward = _tuned(variant, target, spec.isa, tuning, "backward")
            plans.append(plan(variant, target, spec.isa, spec=spec.name, tuned=tuned, tuned_backward=backward))
        except PlanError as error:
            line, column = variant.line or None, variant.column or None
            problems += [replace(problem, path=spec.path, line=line, column=column) for problem in error.problems]
    if problems:
        raise PlanError(problems)
    return plans


def read_spec_tuning(spec_path: str) -> TuningFile:
    """The tuning file beside a spec."""
    return read_tuning(tuning_file(spec_path), PLAN_VERSION, f"fagen tune {shlex.quote(Path(spec_path).name)}")


def target_key(variant: Variant, target: str, isa: str) -> str:
    """What tuning files call a target: of the CPU, with its instruction set."""
    if target != "cpu":
        return target
    return f"cpu {resolve_isa(variant.isa if variant.isa != 'native' else isa)}"


def _tuned(variant: Variant, target: str, isa: str, tuning: TuningFile, direction: str = "forward") -> Tuned | None:
    """What the planner is to take from the tuning file, or (once, of forward) to say of it."""
    entry = tuning.find(shape_class(variant), target_key(variant, target, isa), direction)
    if entry is None and direction != "forward":
        return None
    if entry is None:
        # Without the hints: where nothing is lost but speed, one line says enough.
        told = "; ".join(str(replace(each, hint=None)).removeprefix("error: ") for each in tuning.problems)
        hint = tuning.problems[0].hint if tuning.problems else None
        return Tuned(None, told + (f" ({hint})" if hint else "")) if told else None
    name = tuning.path.name
    if entry.tiles == Tiles():
        return None
    gain = f"{entry.gain:.3g}× as fast as the planner's own" if entry.gain != 1 else "the planner's own"
    measured = (
        f"{name}: the fastest of {entry.tried} candidates, {tiles_in_words(entry.tiles)}, on {entry.card}, "
        f"{entry.date}: {gain}"
    )
    what = "tiles" if direction == "forward" else "backward tiles"
    return Tuned(replace(entry.tiles, measured=measured), f"its {what} in {name} are left aside: ")


def render_plan(plan: Plan, spec_path: str) -> tuple[Source, ...]:
    """The sources of one variant. A slip in a template raises a :class:`FagenError` that names its place in it."""
    import jinja2

    try:
        return render(plan)
    except (jinja2.TemplateError, TypeError) as error:
        file, line = _place_in_template(error)
        if file is None and isinstance(error, TypeError):  # not a template's doing
            raise
        where = f"rendering {plan.variant.name}, {spec_path}:{plan.variant.line}"
        raise FagenError(Problem(f"{error} ({where})", path=file, line=line)) from error


def _place_in_template(error: Exception) -> tuple[str | None, int | None]:
    """File and line in a template that an error came from, if it came from one: jinja puts them into tracebacks."""
    import jinja2

    if isinstance(error, jinja2.TemplateSyntaxError):
        return error.filename or error.name, error.lineno
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).suffix != ".py"]
    return (frames[-1].filename, frames[-1].lineno) if frames else (None, None)


def _native(found: Sequence[Card]) -> str:
    """The target that makes the most of the first card, "native" if there is none."""
    if not found:
        return "native"
    return next((name for name in TARGETS if name.removesuffix("a") == found[0].target), found[0].target)


def _refuse_target(name: str, spec: Spec, asked: str, found: Sequence[Card]) -> Problem | None:
    built = [other for other, target in TARGETS.items() if target.built]
    if name == "native":
        hint = f"name a target: {', '.join(TARGETS)} (built so far: {', '.join(built)})"
        return _at(spec, asked, "target native: no GPU is visible here", hint)
    if name in built:
        return None
    hint = f"built so far: {', '.join(built)}"
    running = [other for other in built if other != "cpu" and found and found[0].runs(other)]
    if running:
        hint += f"; of these, {found[0]} runs {', '.join(running)}"
    which = f"native, {name}" if asked == "native" else name
    return _at(spec, asked, f"target {which}: its schedule is not built yet", hint)


def _at(spec: Spec, target: str, message: str, hint: str) -> Problem:
    """A problem where the spec names a target."""
    place = spec.target_places[target]
    return Problem(message, spec.path, place.line, place.column, hint)
