"""Where in a source an instruction is from, and through which calls it came to be there, as far as a PTX tells.

The directive `.loc file line column, inlined_at file line column` names a place and the call that it was inlined by. Of
that call's own way it says no more: what follows is looked up by the call's place, which may have been inlined several
times.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .ptx.model import Module, Place


@dataclass(frozen=True)
class Said:
    """An instruction, for people: ``text`` at line ``line`` of the PTX; ``source`` is "file:line", or "" where the PTX
    does not tell; ``inlined`` likewise where such code was inlined at last, all that it may be.

    ``lines`` are the source lines that it surely is of, its own and those of calls on its way; ``perhaps`` those of
    other calls that may be on it.
    """

    text: str
    line: int
    source: str
    inlined: tuple[str, ...]
    lines: tuple[str, ...]
    perhaps: tuple[str, ...]


_Spot = tuple[int, int, int]  # file, line, column


class Places:
    """Those of one module. What is found is kept: many instructions are of one place."""

    def __init__(self, module: Module):
        self._module = module
        self._ways: dict[tuple[int | None, int, int, _Spot | None], tuple[set[_Spot], set[_Spot], set[_Spot]]] = {}

    def said(self, text: str, place: Place, own: Collection[tuple[int, int]]) -> Said:
        """Of an instruction in a kernel that has the lines ``own`` (file, line) itself."""
        key = (place.file, place.source_line, place.column, place.caller)
        if key not in self._ways:
            self._ways[key] = self._way(place)
        sure, perhaps, last = self._ways[key]

        def within(spot: _Spot) -> bool:
            lines = [line for file, line in own if file == spot[0]]
            return bool(lines) and min(lines) <= spot[1] <= max(lines)

        source = self._name(place.file, place.source_line)
        lines = dict.fromkeys([source, *self._names(sure)])
        lines.pop("", None)
        return Said(
            text,
            place.line,
            source,
            self._names([spot for spot in last if within(spot)] or last),
            tuple(lines),
            self._names(perhaps),
        )

    def _way(self, place: Place) -> tuple[set[_Spot], set[_Spot], set[_Spot]]:
        """Calls that a place came through, calls that it may have come through, and the last of either."""
        sure, perhaps, last = set[_Spot](), set[_Spot](), set[_Spot]()
        todo = [] if place.caller is None else [(place.caller, True)]
        while todo:
            spot, certain = todo.pop()
            if spot in sure or spot in perhaps:
                continue
            (sure if certain else perhaps).add(spot)
            outer = self._module.inlined.get(spot, set())
            if not outer:
                last.add(spot)
            todo += [(each, certain and len(outer) == 1) for each in outer]
        return sure, perhaps, last

    def _name(self, file: int | None, line: int) -> str:
        return f"{self._module.files[file]}:{line}" if file in self._module.files and line else ""

    def _names(self, spots: Collection[_Spot]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for file, line, _ in sorted(spots) if (name := self._name(file, line))))
