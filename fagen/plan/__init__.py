"""From a variant and a target to a Plan: every number a template prints, each with its reason."""

from .context import context, direction_names, shared_names
from .make import plan
from .model import Plan
from .schedule import schedule

__all__ = ["Plan", "context", "direction_names", "plan", "schedule", "shared_names"]
