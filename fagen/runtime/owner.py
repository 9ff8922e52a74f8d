"""What kernels and their choice need to know of the module that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from .ops import Ops
from .variant import Variant


class Owner(Protocol):
    """A module, seen from its parts."""

    @property
    def name(self) -> str: ...
    @property
    def spec_file(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def emulator(self) -> Any: ...
    @property
    def manifest(self) -> Mapping[str, Any]: ...
    @property
    def ops(self) -> Mapping[str, Ops]: ...
    @property
    def kernels(self) -> Mapping[str, Any]: ...

    def variant(self, name: str) -> Variant:
        """One of its variants."""

    def variants(self) -> tuple[Variant, ...]:
        """All of them."""

    def add(self, kernel: Any) -> None:
        """A kernel of one of them was made."""


def autocast_device(q: Tensor, device: str) -> str:
    """Whose autocast a call of a module for ``device`` follows. CPU tensors that it takes, the emulator computes."""
    return "cpu" if q.device.type == "cpu" else device
