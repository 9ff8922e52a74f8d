"""User text in the comments of rendered sources."""

from __future__ import annotations

from ..runtime.variant import Expression


def comment(text: str) -> str:
    """User text that is safe in a C++ comment: one line, plain characters, nothing that could continue or end it."""
    line = " ".join(text.split())
    plain = "".join(each if each.isascii() and each.isprintable() and each != "\\" else "?" for each in line)
    return plain.replace("*/", "* /")


def text_of(expression: Expression | None, default: str) -> str:
    """An expression as its user wrote it."""
    return default if expression is None else comment(expression.text)
