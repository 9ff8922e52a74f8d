"""PTX text to tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


class PtxError(ValueError):
    """PTX that is not understood; the message names the line and quotes it."""


@dataclass(frozen=True)
class Token:
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
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise PtxError(f"PTX line {line}: unexpected {text[at]!r}")
        kind = match.lastgroup or ""
        if kind != "space":
            yield Token(match[0] if kind == "mark" else kind, match[0], line, at, match.end())
        line += match[0].count("\n")
        at = match.end()
