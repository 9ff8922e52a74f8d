"""What is wrong with an expression, and where in its text."""

from __future__ import annotations

from collections.abc import Sequence


class LanguageError(ValueError):
    """An expression that is not in the language.

    ``start`` and ``end`` are the half-open range of characters (from 0) of ``text`` that the message is about.
    ``others`` are further mistakes in the same text, none of them a consequence of this one, by their place.
    """

    def __init__(
        self,
        message: str,
        start: int = 0,
        end: int = 0,
        hint: str | None = None,
        text: str = "",
        others: Sequence[LanguageError] = (),
    ):
        super().__init__(message)
        self.others = tuple(others)
        self.message = message
        self.start = start
        self.end = max(end, start)
        self.hint = hint
        self.text = text

    def __str__(self) -> str:
        return "\n".join(one._alone() for one in (self, *self.others))

    def _alone(self) -> str:
        lines = [self.message]
        if self.text and len(self.text) <= 200:
            lines.append("  " + "".join(" " if c.isspace() else c for c in self.text))
            lines.append("  " + " " * self.start + "^" * max(1, self.end - self.start))
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.message, self.start, self.end, self.hint, self.text, self.others)


def joined(errors: Sequence[LanguageError]) -> LanguageError:
    """One error that is all of them: the first to stand in the text, and the others."""
    every = sorted((one for error in errors for one in (error, *error.others)), key=lambda error: error.start)
    first = every[0]
    return LanguageError(first.message, first.start, first.end, first.hint, first.text, [_single(e) for e in every[1:]])


def _single(error: LanguageError) -> LanguageError:
    return LanguageError(error.message, error.start, error.end, error.hint, error.text)
