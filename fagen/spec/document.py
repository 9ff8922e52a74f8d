"""A spec's text as a tree of values that know where they stand in it."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import Problem

_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}


@dataclass(frozen=True, order=True)
class Place:
    """A line and a column of the file, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, eq=False)
class Scalar:
    """A single value. ``text`` is its YAML string whatever its type; ``start`` and ``end`` are character indices."""

    place: Place
    text: str
    value: str | int | float | bool | None
    start: int
    end: int
    style: str  # "" plain, "'", '"', "|" or ">"
    in_braces: bool

    @property
    def is_empty(self) -> bool:
        """Nothing was written: ``mask:`` rather than ``mask: null``."""
        return self.value is None and not self.text


@dataclass(frozen=True, eq=False)
class Sequence:
    """A list."""

    place: Place
    items: tuple[Node, ...]
    in_braces: bool


@dataclass(frozen=True, eq=False)
class Mapping:
    """A mapping; ``keys`` holds each key's own scalar, for its place."""

    place: Place
    entries: dict[str, Node]
    keys: dict[str, Scalar]
    in_braces: bool


Node = Scalar | Sequence | Mapping


@dataclass(frozen=True, eq=False)
class Document:
    """A file's text and the tree it holds. ``path`` is what error messages call it."""

    path: str
    text: str
    root: Node
    problems: tuple[Problem, ...]

    @cached_property
    def _line_starts(self) -> list[int]:
        return line_starts(self.text)

    def place(self, index: int) -> Place:
        """The line and column of a character index."""
        return place_at(self._line_starts, index)

    def place_in(self, scalar: Scalar, offset: int) -> Place:
        """Where in the file character ``offset`` of ``scalar.text`` was written, through quotes and folding."""
        places = _source_indices(self.text, scalar)
        return self.place(places[min(max(offset, 0), len(places) - 1)])

    def comment_follows(self, scalar: Scalar) -> bool:
        """Whether YAML took a `` #`` straight after this value as the start of a comment."""
        return scalar.style == "" and re.compile(r"[ \t]+#").match(self.text, scalar.end) is not None


def to_python(node: Node) -> Any:
    """Plain dicts, lists and values. Recursion is bounded by the depth cap and the size by the cap on values."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [to_python(item) for item in node.items]
    return {key: to_python(value) for key, value in node.entries.items()}


def describe(node: Node) -> str:
    """What was found, for "expected ..., found ..."."""
    if isinstance(node, Sequence):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Mapping):
        return "a mapping"
    if node.is_empty:
        return "nothing"
    return f"`{shorten(node.text)}`" + (
        " in quotes" if node.style in ("'", '"') and not node.text.isidentifier() else ""
    )


def shorten(text: str, limit: int = 60) -> str:
    """``text`` in one line of at most ``limit`` characters, safe to print."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1])
    return line if len(line) <= limit else line[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"


def line_starts(text: str) -> list[int]:
    """The index each line starts at, as editors count lines."""
    return [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]


def place_at(starts: list[int], index: int) -> Place:
    """The line and column of a character index."""
    line = bisect_right(starts, index)
    return Place(line, index - starts[line - 1] + 1)


def _source_indices(source: str, scalar: Scalar) -> list[int]:
    """For each character of ``scalar.text``, and for the place after its last, the index it came from."""
    index, end = scalar.start, scalar.end
    if scalar.style in ("'", '"'):
        index, end = index + 1, end - 1
    elif scalar.style in ("|", ">"):
        index = source.index("\n", index) + 1 if "\n" in source[index:end] else end
    found = []
    for character in scalar.text:
        if scalar.style == '"' and source.startswith("\\", index):
            while re.compile(r"\\\r?\n").match(source, index):  # a line continued: it stands for nothing
                index += 1
                while index < end and source[index].isspace():
                    index += 1
            found.append(index)
            index += _ESCAPE_LENGTHS.get(source[index + 1 : index + 2], 2) if source.startswith("\\", index) else 1
            continue
        if character.isspace():
            found.append(index)
            index += index < end and source[index].isspace()
            continue
        while index < end and source[index].isspace() and source[index] != character:
            index += 1
        found.append(index)
        index += 2 if scalar.style == "'" and character == "'" else 1
    found.append(min(max(index, scalar.start), end))
    return [min(place, end) for place in found]
