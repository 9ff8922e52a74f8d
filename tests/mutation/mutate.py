"""Mistakes in a kernel's C++ or CUDA: each bound, index, rescale and operator dropped or shifted, one at a time.

Works on lines of text, by the way rendered kernels and their headers are written (clang-format's spacing tells a
comparison from a template's bracket), so templates need no marks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``file`` with line ``number`` (from 1) changed from ``before`` to ``after``, in function ``function``.

    ``file`` is a kernel, as ``forward:rich``, or a header's name, as ``cpu/softmax.h``. ``nth`` counts, from 1, equal
    lines of a function. ``also`` are the same mistakes in other kernels that have the line: one mutant, which is found
    if it is found in one of them.
    """

    file: str
    function: str
    number: int
    before: str
    after: str
    nth: int = 1
    also: tuple[Mutant, ...] = ()

    @property
    def key(self) -> str:
        """What the list of equivalent mutants calls it: no line number, so that other edits do not change it."""
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.file}: {self.function}{again}: {self.before.strip()} => {self.after.strip()}"

    def applied(self, text: str) -> str:
        """The file's text with the mistake in it."""
        lines = text.split("\n")
        assert lines[self.number - 1] == self.before
        lines[self.number - 1] = self.after
        return "\n".join(lines)


# Pattern and what to put in its place; a pattern may match several times in a line, each a mutant.
Swaps = tuple[tuple[str, str], ...]

# Of any C++. What is of one kind of kernels is beside its subjects.
_SWAPS: Swaps = (
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" == ", " != "),
    (r" != ", " == "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ ", " - "),
    (r" - (?!>)", " + "),
    (r" / ", " * "),
    (r" % ", " / "),
    (r" & ", " | "),
    (r" \| ", " & "),
    (r" << ", " >> "),
    (r" >> ", " << "),
    (r" \+= ", " -= "),
    (r" -= ", " += "),
    (r" \*= ", " /= "),
    (r" \+ 1(?=\W)", ""),
    (r" - 1(?=\W)", ""),
    (r"\blarger\(", "smaller("),
    (r"\bsmaller\(", "larger("),
    (r"\bleast\(", "greatest("),
    (r"\bgreatest\(", "least("),
    (r"\bhull\(Span\(b\), pairs\.q\)", "hull(Span(b), pairs.kv)"),
    (r"\bTri::kAll\b", "Tri::kSome"),
    (r"\bTri::kSome\b", "Tri::kAll"),
    (r"\bTri::kNone\b", "Tri::kSome"),
    (r"-kInfinity\b", "0.0f"),
    (r"(?<![\w.])0\.0f\b", "1.0f"),
    (r"(?<![\w.])1\.0f\b", "2.0f"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"\bat_least\(", "at_most("),
    (r"\bat_most\(", "at_least("),
    (r"\bkTileQ\b", "(kTileQ - 1)"),
    (r"\bkTileKv\b", "(kTileKv - 1)"),
    (r"\.stride_s\b", ".stride_h"),
    (r"\.stride_h\b", ".stride_s"),
    (r"\.stride_b\b", ".stride_s"),
    (r"\.stride_d\b", ".stride_s"),
    (r"\bp\.scale\b", "1.0f"),
    (r" \* p\.scale\b", ""),
    (r" \* factor\b", ""),
    (r"\bp\.k\b", "p.v"),
    (r"\bp\.v\b", "p.k"),
    (r"\bp\.q\b", "p.o"),
)
# A factor of a product: `a * b` keeps either.
_FACTOR = re.compile(r"(?P<left>[\w.\[\]>-]+(?:\([^()]*\))?) \* (?P<right>[\w.\[\]>-]+(?:\([^()]*\))?)")
_INDEX = re.compile(r"\[(?P<index>[^\[\]&]+)\]")  # and no capture
_CONDITION = re.compile(r"\b(?P<kind>if|while) \((?P<condition>.+)\)(?P<rest> [^()]*;| \{| continue;)?$")
_TERNARY = re.compile(
    r"(?P<before>[=(,] ?|return )(?P<test>[^?=(,]+(?:\([^()]*\)[^?=(,]*)?) \? (?P<yes>[^?:]+) : (?P<no>[^;,]+)"
)
_LOOP = re.compile(r"for \((?P<type>\w+) (?P<name>\w+) = (?P<start>[^;]+); (?P<rest>.+)$")
_ADDRESS = re.compile(
    r"(?P<base>\b(?:own|tile|p|item|work|tile\w*|\w+)(?:\.|->)?\w+) \+ (?P<offset>[\w.]+(?: \* [\w.]+)*)(?=[,)])"
)
# The lengths of arrays where they are declared are left alone: they are memory, not what is computed. An index that
# goes past one is another matter, and traps in a trial.
_LENGTHS = re.compile(
    r"^\s*(?:__shared__ )?(?:(?:alignas|__align__)\(\d+\) )?(?:const )?(?:typename )?(?!return )[\w:]+(?:<\w+>)?[ *]+"
    r"(?P<lengths>\w+(?:\[[^\]]*\])+(?:, \w+(?:\[[^\]]*\])+)*)(?: = |;)"
    r"|\(&\w+\)(?P<of_reference>\[[^\]]*\])"
)
# A whole statement that can go without leaving a name undeclared: an assignment or a call, not a declaration.
_STATEMENT = re.compile(
    r"^\s*(?:[\w.\[\]>*()\s-]+(?: [+*/-]?= |\+\+|--)|[\w:]+(?:<[^;]*>)?\(|\+\+|continue;|break;).*;$"
)
_DECLARES = re.compile(r"^\s*(?:[\w:]+(?:<[^;=]*>)?[ *&]+)+\w+ ?[=\[({;,]")
_PREPROCESSOR = re.compile(r"^\s*#")
# A function begins at the margin, a method two columns in; both name a type first, but for constructors.
_FUNCTION = re.compile(r"^(?:  )?(?:explicit |[\w:<>,*& ]+[ *&])(?P<name>\w+)\([^;]*$")
_NO_FUNCTION = ("if ", "for ", "while ", "return ", "else ", "const auto ", "} else", "asm ")
# As nvcc's kernels begin: their names are on a line of their own, or come after the bounds of a launch.
_ENTRY = re.compile(r"^(?:   |extern .*\)) fagen_\w+_(?P<name>forward|backward|tile_counts|find_tiles)\(")


@dataclass(frozen=True)
class Kind:
    """What is of one kind of kernels: mistakes besides those of any C++, and a pattern of the lines and functions that
    are left alone."""

    swaps: Swaps
    skipped: str


def mutants(file: str, text: str, kind: Kind) -> list[Mutant]:
    """Every mistake in a file's text, in the order of its lines; each text once."""
    found: dict[tuple[int, str], Mutant] = {}
    seen: Counter[tuple[str, str]] = Counter()
    for number, function, line in _lines(text, re.compile(kind.skipped)):
        seen[function, line.strip()] += 1
        for after in _line_mutants(line, kind.swaps):
            if after != line:
                nth = seen[function, line.strip()]
                found.setdefault((number, after), Mutant(file, function, number, line, after, nth))
    return list(found.values())


def _lines(text: str, skipped: re.Pattern[str]) -> Iterator[tuple[int, str, str]]:
    """Lines of code that compute something, with the function they stand in."""
    function, comment = "", False
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith("/*"):
            comment = True
        inside, comment = comment, comment and "*/" not in stripped
        if (
            not stripped
            or inside
            or stripped.startswith(("//", "}", "namespace", 'extern "C" {'))
            or _PREPROCESSOR.match(line)
        ):
            continue
        match = _ENTRY.match(line) or _FUNCTION.match(line.replace('extern "C" ', ""))
        if match and not stripped.startswith(_NO_FUNCTION):
            function = match["name"]
        if skipped.search(line) or skipped.search(function):
            continue
        yield number, function, line


def _line_mutants(line: str, swaps: Swaps) -> Iterator[str]:
    code, comment = _split_comment(line)
    declared = _LENGTHS.search(code)
    lengths = declared.span("lengths" if declared["lengths"] else "of_reference") if declared else (0, 0)

    def changed(start: int, end: int, text: str) -> str:
        if lengths[0] <= start and end <= lengths[1]:
            return line
        return code[:start] + text + code[end:] + comment

    for pattern, replacement in (*_SWAPS, *swaps):
        for match in re.finditer(pattern, code):
            yield changed(match.start(), match.end(), match.expand(replacement))
    for match in _overlapping(_FACTOR, code):
        yield changed(match.start(), match.end(), match["left"])
        yield changed(match.start(), match.end(), match["right"])
    for match in _INDEX.finditer(code):
        yield changed(match.start("index"), match.end("index"), f"{match['index']} + 1")
    for match in _ADDRESS.finditer(code):
        yield changed(match.start(), match.end(), match["base"])
    if match := _CONDITION.search(code):
        for condition in (f"!({match['condition']})", "true", "false"):
            yield changed(match.start("condition"), match.end("condition"), condition)
    for match in _TERNARY.finditer(code):
        for kept in ("yes", "no"):
            yield changed(match.start("test"), match.end("no"), match[kept])
    if match := _LOOP.search(code):
        yield changed(match.start("start"), match.end("start"), f"{match['start']} + 1")
    if (
        _STATEMENT.match(code)
        and not _DECLARES.match(code)
        and code.count("(") == code.count(")")
        and "for (" not in code
    ):
        indent = len(code) - len(code.lstrip())
        if not code.strip().startswith(("if ", "while ")):
            yield code[:indent] + ";" + comment


def _overlapping(pattern: re.Pattern[str], code: str) -> Iterator[re.Match[str]]:
    at = 0
    while match := pattern.search(code, at):
        yield match
        at = match.start("right")


def _split_comment(line: str) -> tuple[str, str]:
    place = line.find("  // ")
    return (line, "") if place < 0 else (line[:place], line[place:])
