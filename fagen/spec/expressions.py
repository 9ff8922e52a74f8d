"""From an expression as it stands in the file to a checked one, with mistakes placed in the file.

fagen.runtime.language decides what an expression means; here it is fed the spec's names and its offsets become lines
and columns, through quotes, escapes and folded blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..runtime.language import Define, LanguageError, Node, parse, reads, unparse
from ..runtime.language.scope import Scope
from ..runtime.variant import Expression, Param
from .constant import NoValueError, value_of
from .document import Document, Scalar
from .quoting import quoted
from .validate import Found

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Expressions are printed in comments of generated source, so what could end a comment or join its line to the next
# stops here, whatever the grammar would say of it.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]|\\|\*/|/\*|\?\?")
_STRANGE = re.compile(r"[^A-Za-z0-9_ .,:+\-*/%<>=!&|~()\[\]]")


@dataclass(frozen=True, eq=False)
class Written:
    """An expression as written: the text that counts, and where its characters stand."""

    text: str
    scalar: Scalar
    document: Document
    skipped: int = 0  # characters of the scalar before the text

    def found(self, message: str, offset: int, hint: str | None = None) -> Found:
        return Found(message, self.document.place_in(self.scalar, self.skipped + offset), hint)


@dataclass(frozen=True)
class Names:
    """What the expressions of a variant may name beside the language's own words."""

    params: Mapping[str, Param]
    consts: Mapping[str, int | float]
    defines: Mapping[str, Define]
    broken: frozenset[str] = frozenset()  # declared, but wrongly: said already, so not said again where they are used


def written(scalar: Scalar, document: Document) -> Written:
    """The expression a scalar holds, without blanks around it; a block scalar's last line break is not part of it."""
    text = scalar.text.rstrip("\n") if scalar.style in ("|", ">") else scalar.text
    return Written(text.strip(" "), scalar, document, len(text) - len(text.lstrip(" ")))


def unsafe(expression: Written) -> Found | None:
    """Why an expression must not be printed into generated source, or None."""
    match = _UNSAFE.search(expression.text)
    if match is None:
        return None
    what = match.group()
    if what in ("\n", "\r"):
        hint = (
            "write it in one line, or fold it with `>`" if expression.scalar.style != ">" else "indent its lines alike"
        )
        return expression.found("an expression cannot hold a line break", match.start(), hint)
    return expression.found(f"an expression cannot hold {_shown(what)}", match.start(), _SAID_OTHERWISE.get(what))


def _shown(what: str) -> str:
    return f"`{what}`" if what.isprintable() and what.strip() else f"character U+{ord(what):04X}"


def strange(expression: Written) -> Found | None:
    """Why a text that is kept unread cannot be an expression or a word, or None."""
    match = _STRANGE.search(expression.text)
    if match is None or match.group() in "\r\n":
        return unsafe(expression)
    return expression.found(f"{_shown(match.group())} has no meaning here", match.start())


def read(expression: Written, expect: str, names: Names, key: str) -> tuple[Node | None, list[Found]]:
    """The tree of a mask, score or number, or all that is wrong with it. Neither if a name in it is broken already."""
    problem = unsafe(expression)
    if problem:
        return None, [problem]
    words = set(_WORD.findall(expression.text))
    defines, reached = _reached(words, names.defines)
    if reached & names.broken:
        return None, []
    params = tuple(names.params.values())
    consts = tuple((name, value) for name, value in names.consts.items() if name in reached)
    try:
        return _parsed(expression.text, expect, params, consts, tuple(defines.items())), []
    except LanguageError as error:
        every = (error, *error.others)
        return None, [expression.found(one.message, one.start, _hint(one, expression, key)) for one in every]


def resolved(expression: Written, node: Node) -> Expression:
    """The expression as a Variant carries it."""
    place = expression.document.place_in(expression.scalar, expression.skipped)
    return Expression(expression.text, unparse(node), place.line, place.column)


def read_constant(expression: Written, names: Names, key: str) -> tuple[int | float | None, list[Found]]:
    """The number a constant expression stands for, or what is wrong with it."""
    node, problems = read(expression, "number", Names({}, names.consts, {}, names.broken), key)
    if node is None:
        return None, problems
    try:
        return value_of(node), []
    except NoValueError as error:
        return None, [expression.found(f"`{key}`: {error}", 0)]


def misspelt(body: Written) -> Found | None:
    """What is wrong with a macro's body before anything is known of its arguments, or None."""
    problem = unsafe(body)
    if problem:
        return problem
    try:
        Scope.of(body.text, (), {}).tree()
    except LanguageError as error:
        return body.found(error.message, error.start, error.hint)
    return None


def params_read(*nodes: Node | None) -> set[str]:
    """The params that any of the expressions reads."""
    return {name for node in nodes if node is not None for name in reads(node)}


def words_used(texts: list[str], defines: Mapping[str, Define]) -> set[str]:
    """Every word of the texts and of the macros they use, directly or through others."""
    return _reached({word for text in texts for word in _WORD.findall(text)}, defines)[1]


def loops(defines: Mapping[str, Define]) -> list[list[str]]:
    """Macros that use themselves through others or directly, used or not: each loop once, from its first macro on."""
    uses = {
        name: [word for word in dict.fromkeys(_WORD.findall(define.text)) if word in defines]
        for name, define in defines.items()
    }
    found: list[list[str]] = []
    done: set[str] = set()
    for start in uses:
        path, todo = [start], [iter(uses[start])]
        while todo and start not in done:
            name = next(todo[-1], None)
            if name is None:
                todo.pop()
                done.add(path.pop())
            elif name in path:
                found.append(path[path.index(name) :])
            elif name not in done:
                path.append(name)
                todo.append(iter(uses[name]))
    return found


def _reached(words: set[str], defines: Mapping[str, Define]) -> tuple[dict[str, Define], set[str]]:
    found: dict[str, Define] = {}
    reached = set(words)
    todo = sorted(words & defines.keys())
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = defines[name]
            more = set(_WORD.findall(defines[name].text))
            reached |= more
            todo += more & defines.keys()
    return {name: found[name] for name in sorted(found)}, reached


@lru_cache(maxsize=4096)
def _parsed(
    text: str,
    expect: str,
    params: tuple[Param, ...],
    consts: tuple[tuple[str, int | float], ...],
    defines: tuple[tuple[str, Define], ...],
) -> Node:
    """parse(), once for a family whose members differ in nothing that the expression reads."""
    return parse(
        text,
        params={param.name: param for param in params},
        consts=dict(consts),
        defines=dict(defines),
        expect=expect,
    )


def _hint(error: LanguageError, expression: Written, key: str) -> str | None:
    scalar = expression.scalar
    if expression.document.comment_follows(scalar):
        return "YAML takes ` #` as the start of a comment; if it belongs to the expression, quote it"
    if scalar.style == "" and scalar.in_braces and expression.text.count("(") != expression.text.count(")"):
        return "inside braces a comma ends a value: " + quoted(key, "...")
    return error.hint


_SAID_OTHERWISE = {"\t": "write a space", "\\": "a long expression is folded with `>`, without backslashes"}
