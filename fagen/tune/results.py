"""What was measured, a line of JSON each, written as soon as it is known: an interruption loses one measurement.

There are two kinds of lines. A check's has the verdict on a candidate; a timing's the seconds of all candidates of a
variant at one size, which were measured in turns. Both name kernels by the key of their object, so that what another
compiler or template made is never taken for this one's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import LockError, Problem


@dataclass(frozen=True)
class Checked:
    """The verdict on one candidate's kernel. ``complete``: no case was left out for want of time."""

    key: str
    verdict: str
    complete: bool
    message: str = ""


@dataclass(frozen=True)
class Timed:
    """Seconds a call of one ``direction`` at one ``size`` (as `B2,H16,S8192`), by key: the median over rounds.

    ``names`` has the candidates' names by key; ``version`` is the planner's.
    """

    variant: str
    shape: str
    target: str
    version: int
    size: str
    card: str
    date: str
    own: str  # the key of the planner's own choice; empty if that was not measured
    names: Mapping[str, str]
    tiles: Mapping[str, Mapping[str, int | str]]
    seconds: Mapping[str, float]
    direction: str = "forward"


Record = TypeVar("Record", Checked, Timed)
_KINDS: dict[str, type[Checked] | type[Timed]] = {"check": Checked, "time": Timed}


class Results:
    """The file at ``path``. ``damaged`` counts its lines that cannot be read: they are measured again."""

    def __init__(self, path: Path):
        self.path = path
        self.checked: dict[str, Checked] = {}
        self.timed: dict[tuple[str, str, str, str], Timed] = {}  # by shape, target, direction and size
        self.damaged = 0
        for line in _lines(path):
            try:
                data = json.loads(line)
                self._take(_KINDS[data.pop("kind")](**data))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.damaged += 1

    def add(self, record: Checked | Timed) -> None:
        """Keep it, on disk first. Raises LockError where that cannot be."""
        kind = next(name for name, each in _KINDS.items() if isinstance(record, each))
        line = json.dumps({"kind": kind, **asdict(record)}, ensure_ascii=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a+b") as file:
                # What a killed run left half-written must not spoil the line after it.
                if file.tell() and not _ends_with_newline(file):
                    file.write(b"\n")
                file.write(line.encode())
        except OSError as error:
            raise LockError(Problem(f"{self.path} cannot be written: {error.strerror}", hint="see --results")) from None
        self._take(record)

    def _take(self, record: Any) -> None:
        if isinstance(record, Checked):
            before = self.checked.get(record.key)
            if before is None or record.complete or not before.complete:
                self.checked[record.key] = record
        else:
            if not all(isinstance(value, float) and value > 0 for value in record.seconds.values()):
                raise ValueError("seconds that are none")
            place = record.shape, record.target, record.direction, record.size
            self.timed.pop(place, None)  # the newest is last
            self.timed[place] = record


def _lines(path: Path) -> Iterator[bytes]:
    try:
        yield from (line for line in path.read_bytes().splitlines() if line.strip())
    except FileNotFoundError:
        return
    except OSError as error:
        raise LockError(Problem(f"{path} cannot be read: {error.strerror}", hint="see --results")) from None


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, 2)
    return bool(file.read(1) == b"\n")
