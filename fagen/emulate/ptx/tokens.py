"""PTX text to tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple


class PtxError(ValueError):
    """PTX that is not understood; the message names the line and quotes it."""


class Token(NamedTuple):  # there are many: a dataclass takes three times as long to make
    """``kind`` is "word" (names, registers, directives, opcodes with their modifiers), "number", "string" or the
    punctuation itself."""

    kind: str
    text: str
    line: int
    start: int
    end: int


_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<number>0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+\.\d*(?:[eE][+-]?\d+)?|\d+U?)
      |(?P<word>[%$.]?[A-Za-z_$][\w$]*(?:(?:::|\.)[\w$]+)*|\.[A-Za-z_][\w$]*(?:\.[\w$]+)*)
      |(?P<string>"(?:[^"\\]|\\.)*")
      |(?P<mark><<|>>|[{}()\[\],;:@!|+\-<>=~*/&^?])""",
    re.X | re.S,
)


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a module. Raises PtxError at a character that no token begins with."""
    at, line = 0, 1
    match = _TOKEN.scanner(text).match  # type: ignore[attr-defined]
    while (found := match()) is not None:
        kind, word, start, at = found.lastgroup, found[0], at, found.end()
        if kind == "space":
            line += word.count("\n")
        else:
            yield Token(word if kind == "mark" else kind, word, line, start, at)
    if at < len(text):
        raise PtxError(f"PTX line {line}: unexpected {text[at]!r}")
