"""The hint for YAML that is broken by an unquoted expression: quote it, and how that looks."""

from __future__ import annotations

import re

# Keys whose value is an expression, and the shape of a macro under `define:`.
_EXPRESSION_KEY = re.compile(r"(?<![\w\"'])(mask|score|weight|value|scale)\s*:[ \t]+")
_ANY_KEY = re.compile(r"(?<![\w\"'])([A-Za-z_]\w*)\s*:[ \t]+")
_COMMENT_OR_NEXT_KEY = re.compile(r"(?<=\s)#|,\s*\w+\s*:")
_MARKS = "&*!|>%@`[{-?,]}\"':"


def hint_for_yaml_error(text: str, index: int) -> str | None:
    """What to do about a YAML error at character ``index``, or None when it has nothing to do with an expression."""
    start = text.rfind("\n", 0, index) + 1
    stop = text.find("\n", index)
    line = text[start : stop if stop >= 0 else len(text)][:2000]
    column = index - start
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not with tabs"
    keys = [*_EXPRESSION_KEY.finditer(line)] or [*_ANY_KEY.finditer(line)]
    before = [key for key in keys if key.end() <= max(column, 0) + 1]
    if not before:
        return None
    key = before[-1]
    value = _expression_at(line, key.end())
    if value[:1] in ('"', "'"):
        return "quote the whole expression, not a part of it" if _goes_on_after_its_quote(value) else None
    if not any(mark in value for mark in _MARKS):
        return None
    return f'quote the expression: `{key.group(1)}: "{value}"`'


def quoted(key: str, text: str) -> str:
    """The hint that shows ``text`` quoted."""
    return f'quote the expression: `{key}: "{text}"`' if '"' not in text else "quote the expression"


def _goes_on_after_its_quote(value: str) -> bool:
    closing = value.find(value[0], 1)
    return 0 < closing < len(value) - 1


def _expression_at(line: str, start: int) -> str:
    """The text a person meant as a value: up to a brace that closes nothing, the next key, or a comment."""
    depth = 0
    end = start
    while end < len(line):
        character = line[end]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                break
        elif _COMMENT_OR_NEXT_KEY.match(line, end) and (character == "#" or depth == 0):
            break
        end += 1
    text = line[start:end].strip()
    return text if len(text) <= 100 else ""
