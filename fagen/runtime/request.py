"""What a call of ``attention`` asks for."""

from __future__ import annotations

from dataclasses import dataclass

from .variant import Param


@dataclass(frozen=True)
class Request:
    """What a call asks for, in so far as it decides the variant. Hashable: the choice is made once for each.

    ``mask`` and ``score`` are the caller's texts, ``params`` what is known of the run-time inputs passed; ``scaled``
    says that the call brings a scale of its own.
    """

    mask: str | None
    score: str | None
    head_dim: int
    value_dim: int
    dtype: str
    device: str
    sink: bool
    params: tuple[Param, ...]
    layout: str | None
    backward: bool
    align: str
    scaled: bool
    dropout: bool
