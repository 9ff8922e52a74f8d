"""The schedules there are, by the names that targets and plans have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..expr import KernelCode
from ..runtime.variant import Variant
from .cpu import CPU
from .mma import MMA
from .model import Plan
from .schedule import Schedule
from .wgmma import WGMMA

_SCHEDULES = {"cpu": CPU, "mma": MMA, "wgmma": WGMMA}


def schedule(name: str) -> Schedule:
    """The schedule that targets call ``name``. Raises KeyError if it is not built."""
    return _SCHEDULES[name]


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan that a manifest holds, as :meth:`Plan.to_json` made it."""
    values = dict(data)
    values["variant"] = Variant.from_json(values["variant"])
    values["flags"] = tuple(values["flags"])
    values["code"] = KernelCode.from_json(values["code"])
    types = schedule(values["schedule"])
    values["forward"] = types.forward(**values["forward"])
    values["backward"] = values["backward"] and types.backward(**values["backward"])
    return Plan(**values)
