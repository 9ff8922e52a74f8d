"""What is checked of a text before Python's parser sees it.

Python's parser is recursive and its number conversion quadratic, so size, nesting and digits have limits here;
characters with a meaning in Python that the language has no use for (quotes, ``#``, ``\\``, ``:``) stop here too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import LanguageError

MAX_TEXT = 20_000
MAX_PARENTHESES = 100  # nested; Python's own limit is 200
MAX_OPERATORS = 500  # so the parser's tree is never deeper than these and the parentheses together
MAX_DIGITS = 40

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<name>[A-Za-z_]\w*)|(?P<number>(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?)"
    r"|(?P<symbol>\*\*|//|<=|>=|==|!=|&&|\|\||[-+*/%<>=&|~(),\[\]])",
    re.ASCII,
)
_WORD_OPERATORS = ("and", "or", "not", "if", "else", "is", "in", "lambda", "await", "yield", "for")
_PUNCTUATION = ("(", ")", "[", "]", ",")
_CLOSERS = {"(": ")", "[": "]"}
_SAID_OTHERWISE = {
    "&&": "write `and`",
    "||": "write `or`",
    "!": "write `not`, or `!=` for unequal",
    "^": "write `**` for a power, or `a != b` for two truth values of which one holds",
    "≤": "write `<=`",
    "≥": "write `>=`",
    "≠": "write `!=`",
    "−": "write `-`",
    "–": "write `-`",
    "×": "write `*`",
    "·": "write `*`",
    "÷": "write `/`",
    "∧": "write `and`",
    "∨": "write `or`",
    "¬": "write `not`",
    ":": "a param is read one entry at a time, x[b, kv]; a condition is `a if c else b`",
    "#": "an expression holds no comment",
    ".": "names have no parts",
    "{": "name templates are for variant names; in expressions a matrix key is a bare name",
    "}": "name templates are for variant names; in expressions a matrix key is a bare name",
}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # "name", "number" or "symbol"
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def scan(text: str) -> list[Token]:
    """The tokens of a text; LanguageError for what is not in the language's alphabet or past its limits."""
    if len(text) > MAX_TEXT:
        raise LanguageError(f"this expression has {len(text):,} characters; at most {MAX_TEXT:,} can be read")
    tokens: list[Token] = []
    open_: list[Token] = []
    operators = 0
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match[0] in ("&&", "||"):
            found = match[0] if match else text[at]
            hint = _SAID_OTHERWISE.get(found)
            raise LanguageError(f"`{_printable(found)}` has no meaning here", at, at + len(found), hint, text)
        at = match.end()
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        token = Token(kind, match[0], match.start())
        if kind == "number":
            _check_number(token, text)
        elif kind == "symbol" and token.text in _PUNCTUATION:
            _nest(token, open_, text)
        elif kind == "symbol" or token.text in _WORD_OPERATORS:
            operators += 1
            if operators > MAX_OPERATORS:
                raise LanguageError(f"more than {MAX_OPERATORS} operators", token.start, token.end, None, text)
        tokens.append(token)
    if open_:
        raise LanguageError(f"`{open_[-1].text}` is never closed", open_[-1].start, open_[-1].end, None, text)
    if not tokens:
        raise LanguageError("an expression was expected, but there is none", 0, len(text), None, text)
    return tokens


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def _check_number(token: Token, text: str) -> None:
    rest = text[token.end : token.end + 1]
    if rest.isalnum() or rest in ("_", "."):
        end = token.end
        while end < len(text) and (text[end].isalnum() or text[end] in "_."):
            end += 1
        shown = text[token.start : min(end, token.start + 40)]
        hint = "numbers are decimal: 4096, 0.5, 1e-3"
        raise LanguageError(f"`{shown}` is not a number", token.start, end, hint, text)
    if len(token.text) > MAX_DIGITS:
        message = f"a number of {len(token.text)} characters; at most {MAX_DIGITS} can be read"
        raise LanguageError(message, token.start, token.end, None, text)


def _nest(token: Token, open_: list[Token], text: str) -> None:
    if token.text in _CLOSERS:
        open_.append(token)
        if len(open_) > MAX_PARENTHESES:
            message = f"parentheses nested more than {MAX_PARENTHESES} deep"
            raise LanguageError(message, token.start, token.end, None, text)
    elif token.text != ",":
        if not open_ or _CLOSERS[open_[-1].text] != token.text:
            raise LanguageError(f"`{token.text}` closes nothing", token.start, token.end, None, text)
        open_.pop()
