"""What the cpu schedule's backward kernel chooses, and what its templates print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..expr import KernelCode
from ..runtime.variant import Variant
from ..target import Isa
from .elements import Elements


@dataclass(frozen=True)
class Backward:
    """Sizes of the backward kernel."""


def choose_backward(
    variant: Variant, isa: Isa, elements: Elements, code: KernelCode
) -> tuple[Backward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    return Backward(), {}


def backward_names(variant: Variant, code: KernelCode, backward: Backward) -> Mapping[str, object]:
    """What the templates of the backward kernel print besides the names that both directions share."""
    return {}
