"""The tuning file beside a spec: which tiles `fagen tune` measured to be the fastest, and on what.

    version: 1
    entries:
      - variant: causal_d128              # for people; "shape" is what an entry is found by
        shape: "bf16, 128/128, bshd, ..."
        target: sm_90a
        direction: forward                # or backward, whose kernels for cards have tiles of their own
        tiles: {q: 128, kv: 176, stages: 2, turns: scores}
        gain: 1.04                        # times as fast as the planner's own choice, geometric mean over the lengths
        tried: 38                         # candidates that were measured, the planner's own among them
        card: "NVIDIA H200 (sm_90)"
        date: 2026-11-30
        milliseconds: {"B2,H16,S8192": 3.21}

It is never needed: what cannot be read, or is of another version, is left aside and told of.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Problem, SpecError
from ..runtime.variant import Tiles
from .document import Mapping, Node, Place, to_python
from .document import Sequence as SequenceNode
from .yaml_tree import parse

_MAX_BYTES = 4 << 20
_NEEDED = {"variant": str, "shape": str, "target": str, "tiles": dict, "gain": float, "tried": int, "card": str}


@dataclass(frozen=True)
class TuningEntry:
    """What is known of one variant for one target; see the module's docstring for each field."""

    variant: str
    shape: str
    target: str
    tiles: Tiles
    gain: float
    tried: int
    card: str
    date: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    direction: str = "forward"


@dataclass(frozen=True)
class TuningFile:
    """All entries that can be used, and what is wrong with the rest. No file at all is an empty one."""

    path: Path
    entries: tuple[TuningEntry, ...] = ()
    problems: tuple[Problem, ...] = ()
    damaged: bool = False  # some of it cannot be read, and would be lost if the file were written anew

    def find(self, shape: str, target: str, direction: str = "forward") -> TuningEntry | None:
        """That of a shape class for a target."""
        wanted = shape, target, direction
        return next((each for each in self.entries if (each.shape, each.target, each.direction) == wanted), None)


def read_tuning(path: Path, version: int, again: str) -> TuningFile:
    """The tuning file at ``path``, measured for plan ``version``. ``again`` is the command that writes it.

    Never raises for what the file holds: its mistakes are in ``problems``, each with its place and a hint.
    """
    shown = path.name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return TuningFile(path)
    except OSError as error:
        return TuningFile(path, (), (Problem(f"cannot be read, and is left aside: {error.strerror}", shown),))
    hint = f"mend or delete it, or measure again: {again}"
    try:
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
        root = parse(data.decode("utf-8"), shown).root
    except SpecError as error:
        first = error.problems[0]
        problem = Problem(f"left aside: {first.message}", shown, first.line, first.column, hint)
        return TuningFile(path, (), (problem,), damaged=True)
    except ValueError as error:  # no UTF-8 is one, too
        return TuningFile(path, (), (Problem(f"left aside: {error}", shown, hint=hint),), damaged=True)
    if not isinstance(root, Mapping):
        return TuningFile(path, (), (_at("left aside: it is no mapping", shown, root.place, hint),), damaged=True)
    found = root.entries.get("version")
    if found is None or to_python(found) != version:
        what = "no version" if found is None else f"version {to_python(found)}"
        place = root.place if found is None else found.place
        message = f"left aside: it is measured for {what} of the planner, and this is version {version}"
        return TuningFile(path, (), (_at(message, shown, place, f"measure again: {again}"),))
    return _entries(path, root.entries.get("entries"), hint)


def _entries(path: Path, node: Node | None, hint: str) -> TuningFile:
    if not isinstance(node, SequenceNode):
        place = Place(1, 1) if node is None else node.place
        return TuningFile(path, (), (_at("left aside: `entries` is no list", path.name, place, hint),), damaged=True)
    entries: list[TuningEntry] = []
    problems: list[Problem] = []
    for item in node.items:
        try:
            entries.append(_entry(to_python(item)))
        except (KeyError, TypeError, ValueError) as error:
            problems.append(_at(f"this entry is left aside: {error.args[0]}", path.name, item.place, hint))
    return TuningFile(path, tuple(entries), tuple(problems), damaged=bool(problems))


def _entry(data: Any) -> TuningEntry:
    """Raises ValueError, saying what is wrong with it."""
    if not isinstance(data, dict):
        raise ValueError("it is no mapping")
    for key, kind in _NEEDED.items():
        value = data.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
            raise ValueError(f"`{key}` is missing" if value is None else f"`{key}` cannot be {value!r}")
    tiles = data["tiles"]
    for key, value in tiles.items():
        right = isinstance(value, str) if key == "turns" else isinstance(value, int) and not isinstance(value, bool)
        if key not in ("q", "kv", "stages", "turns") or not right:
            raise ValueError(f"`tiles` cannot have {key}: {value!r}")
    direction = data.get("direction", "forward")
    if direction not in ("forward", "backward"):
        raise ValueError(f"`direction` cannot be {direction!r}")
    times = data.get("milliseconds", {})
    if not isinstance(times, dict) or not all(isinstance(time, (int, float)) for time in times.values()):
        raise ValueError("`milliseconds` is no mapping of numbers")
    if not math.isfinite(data["gain"]):
        raise ValueError(f"`gain` cannot be {data['gain']!r}")
    values = {key: data[key] for key in _NEEDED if key != "tiles"}
    date = str(data.get("date", ""))
    return TuningEntry(**values, tiles=Tiles(**tiles), date=date, milliseconds=times, direction=direction)


def tuning_text(entries: Sequence[TuningEntry], version: int, again: str) -> str:
    """The file that holds ``entries``; :func:`read_tuning` is its inverse."""
    lines = [
        f"# Written by `{again}`, and read by the planner at the next build: the fastest tiles that were measured.",
        "# Tiles that the spec itself gives a variant win over these; `fagen explain` says where each is from.",
        f"version: {version}",
        "entries:" if entries else "entries: []",
    ]
    for entry in entries:
        tiles = {key: value for key, value in vars(entry.tiles).items() if key != "measured" and value is not None}
        times = {size: float(f"{time:.4g}") for size, time in entry.milliseconds.items()}
        lines += [
            f"  - variant: {entry.variant}",
            f"    shape: {_quoted(entry.shape)}",
            f"    target: {_quoted(entry.target)}",
            *["    direction: backward"] * (entry.direction == "backward"),
            f"    tiles: {{{', '.join(f'{key}: {value}' for key, value in tiles.items())}}}",
            f"    gain: {entry.gain:.3f}",
            f"    tried: {entry.tried}",
            f"    card: {_quoted(entry.card)}",
            f"    date: {_quoted(entry.date)}",
            f"    milliseconds: {{{', '.join(f'{_quoted(size)}: {time}' for size, time in times.items())}}}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _at(message: str, path: str, place: Place, hint: str) -> Problem:
    return Problem(message, path, place.line, place.column, hint)
