"""Reads YAML. Data only: no tags, nothing constructed or run.

The tree is built from YAML's events, without recursion and under caps on size, depth and the number of values, so that
no file can cost more than a moment. Plain values follow YAML 1.2: ``true``, ``1``, ``1.5`` and ``null`` are what they
look like, and ``no``, ``1:30`` and ``010`` are strings.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import yaml

from ..errors import Problem, SpecError
from .document import Document, Mapping, Node, Place, Scalar, Sequence, line_starts, place_at, shorten
from .quoting import hint_for_yaml_error

MAX_DEPTH = 32
MAX_PROBLEMS = 50  # told of one file's YAML
MAX_VALUES = 30_000  # as they stand after aliases are followed

_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,29})")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,9})?")
_WORDS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_NULLS = ("", "~", "null", "Null", "NULL")

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse(text: str, path: str) -> Document:
    """The document in ``text``. Raises SpecError for text that is not one YAML document or passes a cap.

    Mistakes that leave the rest readable (tags, duplicate keys, stray anchors) are returned in ``problems``.
    """
    text = text.removeprefix("\ufeff")
    lines = line_starts(text)
    bad = _FORBIDDEN.search(text)
    if bad:
        place = place_at(lines, bad.start())
        raise SpecError(
            Problem(f"character U+{ord(bad.group()):04X} is not allowed in a spec", path, place.line, place.column)
        )
    builder = _Builder(text, path, lines)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        index = mark.index if mark is not None else len(text)
        place = place_at(lines, index)
        message = ", ".join(part for part in (error.context, error.problem) if part)
        raise SpecError(
            [
                *builder.problems,
                Problem(f"not valid YAML: {message}", path, place.line, place.column, hint_for_yaml_error(text, index)),
            ]
        ) from None
    except yaml.YAMLError as error:  # a reader error, which the check above leaves no known way to reach
        raise SpecError(Problem(f"not valid YAML: {error}", path)) from None
    if builder.root is None:
        raise SpecError(
            [
                *builder.problems,
                Problem("the file is empty; expected a spec", path, 1, 1, "`fagen new` writes one to start from"),
            ]
        )
    builder.check_anchors()
    return Document(path, text, builder.root, tuple(builder.problems))


def _events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=Loader)
    except RecursionError:  # the pure-Python scanner, on text that the depth cap would refuse next
        raise yaml.MarkedYAMLError(None, None, "nested too deep") from None


class _Builder:
    """Turns events into a tree, keeping open collections on a list of its own instead of the call stack."""

    def __init__(self, text: str, path: str, lines: list[int]):
        self.text, self.path, self.lines = text, path, lines
        self.problems: list[Problem] = []
        self.root: Node | None = None
        self.last: Node | None = None  # the value that was finished last
        self.open: list[_Open] = []
        self.anchors: dict[str, tuple[Node, int]] = {}  # the node and how many values it holds
        self.unfinished: list[str] = []
        self.unused: dict[str, Place] = {}
        self.values = 0
        self.documents = 0

    def place(self, index: int) -> Place:
        return place_at(self.lines, index)

    def say(self, message: str, place: Place, hint: str | None = None) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(message, self.path, place.line, place.column, hint))

    def stop(self, message: str, index: int) -> SpecError:
        place = self.place(index)
        return SpecError([*self.problems, Problem(message, self.path, place.line, place.column)])

    def take(self, event: Any) -> None:
        index = event.start_mark.index
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise self.stop("a second YAML document starts here; a spec is one document", index)
        elif isinstance(event, yaml.AliasEvent):
            self.alias(event, index)
        elif isinstance(event, yaml.ScalarEvent):
            self.node_starts(event, index)
            self.add(self.scalar(event))
            self.anchor(event.anchor, 1)
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            self.node_starts(event, index)
            if len(self.open) >= MAX_DEPTH:
                raise self.stop(f"nested more than {MAX_DEPTH} deep", index)
            flow = bool(event.flow_style)
            kind = isinstance(event, yaml.MappingStartEvent)
            self.open.append(_Open(kind, self.place(index), event.anchor, self.values, flow or self.in_braces()))
            if event.anchor is not None:
                self.unfinished.append(event.anchor)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            done = self.open.pop()
            if done.anchor is not None:
                self.unfinished.remove(done.anchor)
            held = self.values - done.values_before
            self.add(done.finish())
            self.anchor(done.anchor, held)

    def in_braces(self) -> bool:
        return bool(self.open) and self.open[-1].in_braces

    def node_starts(self, event: Any, index: int) -> None:
        self.count(1, index)
        if event.tag is not None:
            self.say(
                f"YAML tag `{shorten(_tag(event))}` is not allowed: a spec is plain data",
                self.place(index),
                "if it begins an expression, quote it",
            )
        if event.anchor is not None:
            self.unused[event.anchor] = self.place(index)

    def count(self, values: int, index: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise self.stop(f"more than {MAX_VALUES:,} values (aliases counted each time they are used)", index)

    def anchor(self, name: str | None, held: int) -> None:
        if name is not None and self.last is not None:
            self.anchors[name] = (self.last, held)

    def alias(self, event: Any, index: int) -> None:
        name = event.anchor
        if name in self.unfinished:
            raise self.stop(f"alias `*{shorten(name)}` refers to a value that holds it", index)
        if name not in self.anchors:
            self.say(
                f"no anchor `&{shorten(name)}` stands before this alias",
                self.place(index),
                "if `*` begins an expression, quote it",
            )
            text = self.text[index : event.end_mark.index]
            self.add(Scalar(self.place(index), text, None, index, event.end_mark.index, "", self.in_braces()))
            return
        node, held = self.anchors[name]
        self.unused.pop(name, None)
        self.count(held, index)
        if _depth(node) + len(self.open) > MAX_DEPTH:
            raise self.stop(f"nested more than {MAX_DEPTH} deep", index)
        self.add(node)

    def scalar(self, event: Any) -> Scalar:
        start, end = event.start_mark.index, event.end_mark.index
        while start < end and self.text[start] in "&!":  # an anchor or tag before the value itself
            while start < end and not self.text[start].isspace():
                start += 1
            while start < end and self.text[start].isspace():
                start += 1
        style = event.style or ""
        value = event.value if style else _plain_value(event.value)
        text = event.value or (_tag(event) if event.tag else "")  # so that a tag alone is not "no value" as well
        return Scalar(self.place(start), text, value, start, end, style, self.in_braces())

    def add(self, node: Node) -> None:
        self.last = node
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        if not top.is_mapping:
            top.items.append(node)
        elif not top.has_key:
            top.has_key = True
            top.key = node if isinstance(node, Scalar) else None
            if top.key is None:
                self.say(
                    "expected a word as key, found a list or mapping",
                    node.place,
                    "braces and brackets that belong to an expression must be quoted",
                )
        else:
            top.has_key = False
            self.entry(top, node)

    def entry(self, top: _Open, node: Node) -> None:
        key = top.key
        if key is None:
            return
        if key.text == "<<" and key.style == "":
            self.say("merge keys (`<<`) are not supported", key.place, "put what variants share under `defaults:`")
        elif key.text in top.entries:
            first = top.keys[key.text].place
            self.say(
                f"key `{shorten(key.text)}` stands twice, first at line {first.line}, column {first.column}",
                key.place,
                "remove one of them",
            )
        else:
            top.entries[key.text] = node
            top.keys[key.text] = key

    def check_anchors(self) -> None:
        for name, place in self.unused.items():
            self.say(f"anchor `&{shorten(name)}` is used nowhere", place, "if `&` begins an expression, quote it")


class _Open:
    """A list or mapping whose end has not been read yet."""

    def __init__(self, is_mapping: bool, place: Place, anchor: str | None, values_before: int, in_braces: bool):
        self.is_mapping, self.place, self.anchor, self.in_braces = is_mapping, place, anchor, in_braces
        self.values_before = values_before
        self.items: list[Node] = []
        self.entries: dict[str, Node] = {}
        self.keys: dict[str, Scalar] = {}
        self.has_key = False
        self.key: Scalar | None = None

    def finish(self) -> Node:
        if self.is_mapping:
            return Mapping(self.place, self.entries, self.keys, self.in_braces)
        return Sequence(self.place, tuple(self.items), self.in_braces)


def _tag(event: Any) -> str:
    """A tag as it was written."""
    return str(event.tag).replace("tag:yaml.org,2002:", "!!", 1)


def _depth(node: Node) -> int:
    """Levels of nesting, walked without recursion."""
    deepest, todo = 0, [(node, 0)]
    while todo:
        current, level = todo.pop()
        deepest = max(deepest, level)
        if isinstance(current, Sequence):
            todo += [(item, level + 1) for item in current.items]
        elif isinstance(current, Mapping):
            todo += [(item, level + 1) for item in current.entries.values()]
    return deepest


def _plain_value(text: str) -> str | int | float | bool | None:
    if text in _NULLS:
        return None
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if len(text) <= 60 and _FLOAT.fullmatch(text):
        return float(text)
    if text in (".inf", "+.inf", "-.inf"):
        return math.inf if text[0] != "-" else -math.inf
    if text == ".nan":
        return math.nan
    return text
