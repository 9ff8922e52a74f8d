"""The parts of a KernelCode as the templates print them: each with the names that it needs in scope, and no others.

A rendered kernel declares a name only where something uses it, as a person would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..expr import ArrayDeclaration, KernelCode, Snippet
from ..runtime.variant import Variant

_POSITIONS = ("b", "h", "hk", "i", "q", "j", "kv")
# The names that statements of the middle end may use, beside arrays of params: see fagen.expr.code.
SCOPE = (*_POSITIONS, "s", "raw", "scale", "reference", "first", "step", "q_len", "kv_len", "lanes")

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Piece:
    """Statements and what they stand on.

    ``declarations`` make the arrays they read; ``needs`` are the names of SCOPE they use, or that those are made from.
    """

    declarations: tuple[str, ...]
    needs: tuple[str, ...]

    @property
    def p(self) -> str:
        """The name of a function's Params, nothing if it needs none."""
        return " p" if self.declarations or {"hk", "q_len", "kv_len", "scale"} & set(self.needs) else ""

    @property
    def at(self) -> str:
        """The name of a function's Block, nothing if it needs none."""
        return " at" if set(self.needs) - {"q_len", "kv_len", "scale", "lanes"} else ""


@dataclass(frozen=True)
class Scores(Piece):
    """From a scaled score to ``x`` and ``allowed`` ("" without a mask).

    ``row`` runs once a query row, ``pair`` once a vector of keys.
    """

    row: tuple[str, ...]
    pair: tuple[str, ...]
    x: str
    allowed: str


@dataclass(frozen=True)
class Body(Piece):
    """The body of a function."""

    body: tuple[str, ...]


def identifiers(lines: Iterable[str]) -> set[str]:
    """Every identifier in C++ statements (in no string literal: the middle end prints none)."""
    return {name for line in lines for name in _IDENTIFIER.findall(line)}


def used_declarations(declarations: Iterable[ArrayDeclaration], names: set[str]) -> tuple[str, ...]:
    """The statements that make those arrays whose name is among ``names``."""
    return tuple(each.text for each in declarations if each.name in names)


def used_statements(lines: Sequence[str], names: set[str]) -> tuple[str, ...]:
    """The statements that declare something among ``names``, to which what they need is added."""
    kept: list[str] = []
    for line in reversed(lines):
        if line.partition(" = ")[0].split()[-1] in names:
            kept.insert(0, line)
            names |= identifiers((line,))
    return tuple(kept)


def times(factor: str) -> str:
    """dx · factor."""
    if factor == "1.0f":
        return "dx"
    if factor == "-1.0f":
        return "-dx"
    return f"dx * {factor}" if re.fullmatch(r"\w+", factor) else f"dx * ({factor})"


def needs(names: set[str], variant: Variant) -> tuple[str, ...]:
    """The names of SCOPE among ``names``, and those they are computed from, in SCOPE's order."""
    wanted = names & set(SCOPE)
    if "kv" in wanted:
        wanted.add("j")
    if "q" in wanted:
        wanted.add("i")
        if variant.align == "bottom_right":
            wanted |= {"q_len", "kv_len"}
    return tuple(name for name in SCOPE if name in wanted)


def scores(code: KernelCode, variant: Variant, snippet: Snippet | None, *, tail: bool) -> Scores:
    """A snippet that gives x, and allowed if there is a mask. None stands for x = s.

    ``tail`` says that keys may lie past the end, so that their index is compared with the length.
    """
    snippet = snippet or Snippet((), (), ("s",))
    names = identifiers((*snippet.row, *snippet.pair, *snippet.results))
    if tail:
        names |= {"j", "kv_len"}
    return Scores(
        used_declarations(code.declarations, names),
        needs(names, variant),
        snippet.row,
        snippet.pair,
        snippet.results[0],
        snippet.results[1] if len(snippet.results) > 1 else "",
    )


def admission(code: KernelCode, variant: Variant, *, tail: bool = True) -> dict[str, object]:
    """Whether a pair counts: ``admitted`` says so after the statements of ``admitted_pairs``. With ``tail`` no key past
    the last one does; without it, that is for the mask to say."""
    found = scores(code, variant, code.mask, tail=tail)
    asked = [] if variant.mask is None else [f"({found.x})" if tail else found.x]
    return {"admitted": " && ".join([*asked, *["j < kv_len"] * tail]), "admitted_pairs": found}


def body(code: KernelCode, variant: Variant, lines: tuple[str, ...]) -> Body:
    """The body of a function that sees Spans `q` and `kv` of positions."""
    names = identifiers(lines)
    wanted = set(needs(names, variant))
    if "kv" in names:
        wanted.add("kv_len")  # only keys that exist
    return Body(
        used_declarations(code.declarations, names),
        tuple(name for name in SCOPE if name in wanted),
        lines,
    )
