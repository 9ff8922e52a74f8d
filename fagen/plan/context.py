"""The names that a plan's templates see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import Plan
from .schedules import schedule


def shared_names(plan: Plan) -> Mapping[str, object]:
    """What the templates of both directions may print."""
    return schedule(plan.schedule).shared_names(plan)


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction may print besides."""
    return schedule(plan.schedule).direction_names(plan, direction)


def context(plan: Plan, direction: str) -> dict[str, Any]:
    """All names of one direction's templates."""
    return {**shared_names(plan), **direction_names(plan, direction)}
