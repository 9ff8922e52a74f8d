"""From a Plan to the text of its sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from .resources import templates_dir

if TYPE_CHECKING:
    import jinja2

    from .plan import Plan


@dataclass(frozen=True)
class Source:
    """One translation unit: file ``name``, its ``text``, the ``direction`` it computes ("forward" or "backward"), the
    compiler ``flags`` it needs and the name of its ``variant``."""

    name: str
    text: str
    direction: str
    flags: tuple[str, ...]
    variant: str


def render(plan: Plan) -> tuple[Source, ...]:
    """The sources of a plan: the same bytes for the same plan, on any machine."""
    from .plan import context
    from .plan.schedules import schedule

    suffix = schedule(plan.schedule).suffix
    return tuple(
        Source(
            name=source_name(plan.variant.name, direction, suffix),
            text=environment().get_template(f"{plan.schedule}/{direction}{suffix}.j2").render(context(plan, direction)),
            direction=direction,
            flags=plan.flags_of(direction),
            variant=plan.variant.name,
        )
        for direction in plan.directions
    )


def source_name(variant: str, direction: str, suffix: str = ".cpp") -> str:
    """What the file of one direction of a variant is called."""
    return f"{variant}_{direction}{suffix}"


@cache
def environment() -> jinja2.Environment:
    """How every template of fagen is read: to print an undefined name, a truth value or None is an error."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_printable,
        autoescape=False,
    )


def _printable(value: object) -> object:
    if value is None or isinstance(value, bool):
        raise TypeError(f"a template prints {value!r}: it must decide by it instead")
    return value
