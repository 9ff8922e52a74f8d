"""What is wrong with an expression, and where in its text."""

from __future__ import annotations


class LanguageError(ValueError):
    """An expression that is not in the language.

    ``start`` and ``end`` are the half-open range of characters (from 0) of ``text`` that the message is about.
    """

    def __init__(self, message: str, start: int = 0, end: int = 0, hint: str | None = None, text: str = ""):
        super().__init__(message)
        self.message = message
        self.start = start
        self.end = max(end, start)
        self.hint = hint
        self.text = text

    def __str__(self) -> str:
        lines = [self.message]
        if self.text and len(self.text) <= 200:
            lines.append("  " + "".join(" " if c.isspace() else c for c in self.text))
            lines.append("  " + " " * self.start + "^" * max(1, self.end - self.start))
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type, tuple[str, int, int, str | None, str]]:
        return type(self), (self.message, self.start, self.end, self.hint, self.text)
