"""From a variant and a target to a Plan: every number a template prints, each with its reason."""

from .context import context, direction_names, shared_names
from .make import plan
from .model import Plan
from .schedules import plan_from_json, schedule

__all__ = ["Plan", "context", "direction_names", "plan", "plan_from_json", "schedule", "shared_names"]
