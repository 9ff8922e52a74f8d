"""How Hopper kernels exclude the pairs of a tile that a mask does not admit: one by one, or, by masks that read params,
column by column, for two rows at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...expr.code import ArrayDeclaration, Snippet
from ...runtime.language import Binary, Call, Read, parse, walk
from ..model import Plan
from ..pieces import scores

NAME_PATTERN = re.compile(r"[A-Za-z_]\w*")
_DECLARATION = re.compile(r"const (\w+) (\w+) = (.*);")


_LOAD = re.compile(r"(\w+)\.load\(([^()]*)\)")
_KEY = re.compile(r"(?:kv|j)(?: [+-] \d+)?")


@dataclass(frozen=True)
class KeyRead:
    """A read of a param along one ``axis``, at a key.

    ``name`` is declared by it; ``indexes`` are those at the first key of a tile, in scope of a Block `at`.
    """

    name: str
    array: ArrayDeclaration
    axis: int
    indexes: str

    @classmethod
    def of(cls, line: str, declarations: Sequence[ArrayDeclaration], beside: set[str]) -> KeyRead | None:
        """Of a statement that is one, and reads nothing of ``beside``, what others declare."""
        name, value = declared(line)
        load = _LOAD.fullmatch(value)
        if load is None:
            return None
        indexes = load[2].split(", ")
        keys = [axis for axis, index in enumerate(indexes) if {"kv", "j"} & set(NAME_PATTERN.findall(index))]
        if len(keys) != 1 or not _KEY.fullmatch(indexes[keys[0]]) or beside & set(NAME_PATTERN.findall(load[2])):
            return None
        (array,) = (each for each in declarations if each.name == load[1])
        return cls(name, array, keys[0], re.sub(r"\b(?:kv|j)\b", "at.j", load[2]))

    @property
    def statement(self) -> str:
        """What declares it of a tile's column."""
        return f"const auto {self.name} = keys.{self.name}.at<kHeld>(column);"


@dataclass(frozen=True)
class OfKey:
    """The statements of a pair that are of its key alone, what they declare, and the other ones; and whether the key's
    position is named ``alone``, by the former, or ``beside`` a row, by the others and the result. ``reads`` are those
    of the former that read params, if all do so along one axis, and stand in ``lines`` as KeyRead.statement."""

    lines: tuple[str, ...]
    names: tuple[str, ...]
    others: tuple[str, ...]
    alone: bool
    beside: bool
    reads: tuple[KeyRead, ...] = ()

    @classmethod
    def of(cls, piece: Snippet, declarations: Sequence[ArrayDeclaration]) -> OfKey:
        """Of a Snippet in scalars, which reads these arrays."""
        varying = {"i", "q", *(declared(line)[0] for line in piece.row)}  # with the row
        lines, names, others = [], [], []
        for line in piece.pair:
            name, value = declared(line)
            if varying.isdisjoint(NAME_PATTERN.findall(value)):
                lines.append(line)
                names.append(name)
            else:
                others.append(line)
                varying.add(name)
        reads = {line: KeyRead.of(line, declarations, set(names)) for line in lines if ".load(" in line}
        along = tuple(read for read in reads.values() if read is not None)
        if len(along) == len(reads):
            lines = [line if (read := reads.get(line)) is None else read.statement for line in lines]
        else:
            along = ()
        alone, beside = (
            any("kv" in NAME_PATTERN.findall(line) for line in each) for each in (lines, [*others, *piece.results])
        )
        return cls(tuple(lines), tuple(names), tuple(others), alone, beside, along)

    @property
    def loads(self) -> bool:
        """Whether pairs read params by accesses of their own."""
        return any(".load(" in line for line in (*self.lines, *self.others))


def excluding(plan: Plan, names: Mapping[str, Any]) -> Mapping[str, object]:
    """How pairs are excluded that the mask does not admit: one by one, or, by one with reads, column by column, for two
    rows."""
    mask, code, variant = plan.code.mask, plan.code, plan.variant
    if mask is None or is_short(plan):
        return {"of_key": None, "key_reads": None, "exclude": "exclude_pairs_unrolled", "excluding_test": "pair_test"}
    of_key = OfKey.of(mask, code.declarations)
    at_key = [read.indexes + f" {read.array.name}" for read in of_key.reads]
    reads = Snippet((), (), tuple(at_key))
    rest = Snippet(mask.row, (*of_key.lines, *of_key.others), (names["admitted"],))
    # Few instructions a pair, but for what is read of its key.
    unrolled = not of_key.loads and is_short(plan, but=(Read,))
    return {
        "of_key": of_key,
        "key_reads": scores(code, variant, reads, tail=False) if of_key.reads else None,
        "row_pairs": scores(code, variant, rest, tail=False),
        "exclude": "exclude_rows_unrolled" if unrolled else "exclude_rows<4>",
        "excluding_test": "rows_test",
    }


def declared(line: str) -> tuple[str, str]:
    """The name that a statement declares, and its value."""
    match = _DECLARATION.fullmatch(line)
    assert match is not None, line
    return match[2], match[3]


def is_short(plan: Plan, but: tuple[type, ...] = ()) -> bool:
    """Whether a mask is a few instructions a pair: without params, functions, divisions and remainders.

    ``but`` are kinds of nodes that do not count.
    """
    variant = plan.variant
    if variant.mask is None:
        return True
    tree = parse(variant.mask.resolved, params={param.name: param for param in variant.params}, expect="mask")
    long = tuple({Read, Call} - set(but))
    return not any(isinstance(node, long) or (isinstance(node, Binary) and node.op in "//%") for node in walk(tree))
