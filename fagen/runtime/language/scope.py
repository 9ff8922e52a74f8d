"""One text being read, and where things are in it."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .errors import LanguageError
from .macros import Argument
from .scan import Token, scan


@dataclass(frozen=True)
class Scope:
    """The user's text, or a macro's body with what its parameters stand for.

    ``indent`` counts the characters in front that Python's parser does not get; ``macros`` names the macros whose
    bodies are being expanded, outermost first.
    """

    text: str
    tokens: Sequence[Token]
    indent: int
    macros: tuple[str, ...]
    arguments: Mapping[str, Argument]

    @classmethod
    def of(cls, text: str, macros: tuple[str, ...], arguments: Mapping[str, Argument]) -> Scope:
        """LanguageError for what cannot even be split into words. A text may span lines."""
        tokens = scan(text)
        flat = "".join(" " if c.isspace() else c for c in text)  # a line break would end the expression for Python
        return cls(flat, tokens, len(flat) - len(flat.lstrip()), macros, arguments)

    def tree(self) -> ast.expr:
        """The text as Python's parser sees it. Every column is a character: scan() lets only ASCII through."""
        try:
            with warnings.catch_warnings():  # such as "invalid decimal literal" for 1if
                warnings.simplefilter("ignore")
                return ast.parse(self.text[self.indent :], mode="eval").body
        except SyntaxError as error:
            raise self._unreadable(error) from None
        except (ValueError, MemoryError, RecursionError):
            raise self.error(None, "this is too large or too deeply nested to be read") from None

    def _unreadable(self, error: SyntaxError) -> LanguageError:
        at = self.indent + max(0, (error.offset or 1) - 1)
        hint = None
        signs = [t for t in self.tokens if t.text == "="]
        if signs:
            at, hint = signs[0].start, "comparisons are < <= > >= == !="
        last = self.tokens[-1]
        if last.kind == "symbol" and last.text not in (")", "]") or last.text in ("and", "or", "not", "if", "else"):
            return LanguageError("the expression ends too soon", last.end, last.end, hint, self.text)
        reason = (error.msg or "invalid syntax").split(". ")[0]
        found = next((t for t in self.tokens if t.start <= at < t.end), None)
        end = found.end if found else at + 1
        return LanguageError(f"cannot read `{self.text[at:end]}` here: {reason}", at, end, hint, self.text)

    def span(self, node: ast.expr) -> tuple[int, int]:
        """The half-open range of characters of a part."""
        return node.col_offset + self.indent, (node.end_col_offset or node.col_offset) + self.indent

    def source(self, node: ast.expr) -> str:
        """The text of a part, cut if long."""
        start, end = self.span(node)
        text = self.text[start:end]
        return text if len(text) <= 60 else text[:57] + "..."

    def in_parentheses(self, node: ast.expr) -> bool:
        """Whether parentheses of its own stand around a part, which Python's tree does not say."""
        start, end = self.span(node)
        before = [t.text for t in self.tokens if t.end <= start]
        after = [t.text for t in self.tokens if t.start >= end]
        return bool(before and after) and before[-1] == "(" and after[0] == ")"

    def error(self, node: ast.expr | None, message: str, hint: str | None = None) -> LanguageError:
        """A LanguageError about a part, or about the whole text."""
        start, end = (self.indent, len(self.text.rstrip())) if node is None else self.span(node)
        return LanguageError(message, start, end, hint, self.text)
