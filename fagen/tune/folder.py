"""What a folder of candidates says of itself: sweep.json, which is all that the measuring step reads beside modules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Problem, UsageError

SWEEP = "sweep.json"


@dataclass(frozen=True)
class Candidate:
    """One that was compiled: its ``name`` in ``module``, the key of its objects, and its tiles for the direction that
    is tuned, none if they are the planner's own and no tiles say them."""

    name: str
    module: str
    key: str
    tiles: Mapping[str, int | str]


@dataclass
class Swept:
    """The sweep of one direction of a variant: where tiles are of both, that is "forward". ``own`` is the name of the
    planner's own choice; ``pruned`` says, by tiles, why others are not tried; ``waiting`` counts those that are not
    compiled yet."""

    variant: str
    shape: str
    target: str
    own: str
    candidates: list[Candidate] = field(default_factory=list)
    pruned: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    direction: str = "forward"

    @property
    def label(self) -> str:
        """For people."""
        return label_of(self.variant, self.direction)


@dataclass(frozen=True)
class Sweep:
    """What sweep.json holds: ``version`` is the planner's."""

    spec: str
    version: int
    variants: tuple[Swept, ...]

    def write(self, folder: Path) -> None:
        """Put it into ``folder``, whole or not at all."""
        aside = folder / f".{SWEEP}"
        aside.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        aside.replace(folder / SWEEP)


def label_of(variant: str, direction: str) -> str:
    """What people call it: forward goes without saying."""
    return variant if direction == "forward" else f"{variant} {direction}"


def read_sweep(folder: Path) -> Sweep:
    """That of ``folder``. Raises UsageError where there is none that can be read."""
    path = folder / SWEEP
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        variants = tuple(
            Swept(**{**each, "candidates": [Candidate(**one) for one in each["candidates"]]})
            for each in data["variants"]
        )
        return Sweep(data["spec"], data["version"], variants)
    except FileNotFoundError:
        message = f"{folder} holds no candidates: it has no {SWEEP}"
    except (OSError, ValueError, TypeError, KeyError) as error:
        message = f"{path} cannot be read: {error}"
    raise UsageError(Problem(message, hint="`fagen tune SPEC --compile-only` makes it; what is compiled is kept"))
