"""The names that the wgmma templates see. A template prints these and decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...expr.code import ArrayDeclaration, RowScores, Snippet
from ...runtime.language import Binary, Call, Read, parse, walk
from ..mma.names import expression_names, shared_names
from ..model import Plan
from ..pieces import Scores, body, scores
from .backward import Backward, backward_names
from .forward import Forward, band_places, planned

__all__ = ["direction_names", "shared_names"]


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction print besides."""
    if direction == "backward":
        assert isinstance(plan.backward, Backward)
        return backward_names(plan.variant, plan.code, plan.backward, short=_is_short(plan))
    assert isinstance(plan.forward, Forward)
    forward = plan.forward
    by_head = forward.by_head
    short = _is_short(plan)
    names = expression_names(plan, "kRoom", "p.unit", ends=True)
    return {
        **names,
        **_scores(plan, names),
        # What asks the mask for its tiles: the scheduler, or a kernel before it.
        "asks": forward.finds == "scheduler",
        "reads": forward.finds == "kernel",
        **_bounds(plan),
        "tile_kv": forward.tile_kv,
        "groups": forward.groups,
        "stages": forward.stages,
        "query_stages": forward.query_stages,
        # As was seen to be best on an H200.
        "row_by_row": forward.groups < 3,
        "staged_slabs": forward.staged_slabs,
        "planned": planned(forward.stages),
        "registers": forward.registers,
        "feeder_registers": forward.feeder_registers,
        "shared_bytes": forward.shared_bytes,
        "turns": forward.turns,
        # Whether weights are so small that those of as many keys as there are sum to 1: see expression_names.
        "small_weights": plan.variant.dtype == "bf16",
        "asks_by_pair": short,
        "exclude_header": "exclude_unrolled" if short else "exclude_rows",
        **_excluding(plan, names),
        "cache_bytes": 32 << 20,  # of 50 MiB, which q and o share
        "product": plan.variant.dtype,  # as the instruction calls the type of its operands
        # Tiles are found beforehand, once for all heads that the mask does not tell apart.
        "words_of": "rows of blocks of each head" if by_head else "rows of blocks of each batch entry",
        "words_row": "(at.b * p.shape.heads + at.h)" if by_head else "static_cast<int64_t>(at.b)",
        "words_heads": "p.shape.heads * " if by_head else "",
        "words_batch": "static_cast<int32_t>(work / p.shape.heads)" if by_head else "static_cast<int32_t>(work)",
        "words_head": "static_cast<int32_t>(work % p.shape.heads)" if by_head else "0",
        "screened": " | Note::kScreened" if shared_names(plan)["contains"] else "",
        "screeners": " + kScreeners" if shared_names(plan)["contains"] else "",
    }


_NAME = re.compile(r"[A-Za-z_]\w*")
_DECLARATION = re.compile(r"const (\w+) (\w+) = (.*);")


_LOAD = re.compile(r"(\w+)\.load\(([^()]*)\)")
_KEY = re.compile(r"(?:kv|j)(?: [+-] \d+)?")


@dataclass(frozen=True)
class KeyRead:
    """A read of a param along one ``axis``, at a key: ``name`` is declared by it, ``indexes`` are those at the first key
    of a tile, in scope of a Block `at`."""

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
        keys = [axis for axis, index in enumerate(indexes) if {"kv", "j"} & set(_NAME.findall(index))]
        if len(keys) != 1 or not _KEY.fullmatch(indexes[keys[0]]) or beside & set(_NAME.findall(load[2])):
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
            if varying.isdisjoint(_NAME.findall(value)):
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
            any("kv" in _NAME.findall(line) for line in each) for each in (lines, [*others, *piece.results])
        )
        return cls(tuple(lines), tuple(names), tuple(others), alone, beside, along)

    @property
    def loads(self) -> bool:
        """Whether pairs read params by accesses of their own."""
        return any(".load(" in line for line in (*self.lines, *self.others))


def _excluding(plan: Plan, names: Mapping[str, Any]) -> Mapping[str, object]:
    """How pairs are excluded that the mask does not admit: one by one, or, by one with reads, column by column, for two
    rows."""
    mask, code, variant = plan.code.mask, plan.code, plan.variant
    if mask is None or _is_short(plan):
        return {"of_key": None, "key_reads": None, "exclude": "exclude_pairs_unrolled", "excluding_test": "pair_test"}
    of_key = OfKey.of(mask, code.declarations)
    at_key = [read.indexes + f" {read.array.name}" for read in of_key.reads]
    reads = Snippet((), (), tuple(at_key))
    rest = Snippet(mask.row, (*of_key.lines, *of_key.others), (names["admitted"],))
    # Few instructions a pair, but for what is read of its key.
    unrolled = not of_key.loads and _is_short(plan, but=(Read,))
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


@dataclass(frozen=True)
class ScoreForm:
    """A function of a lane's row of pairs."""

    name: str
    comment: str
    piece: Scores


def _scores(plan: Plan, names: Mapping[str, Any]) -> Mapping[str, object]:
    """How the scores of tiles are printed, and that of one pair, which has all it reads from memory."""
    assert isinstance(plan.forward, Forward)
    variant, code = plan.variant, plan.code
    pair = {"pair_score": names["full_scores"]}
    banded = code.banded_score if plan.forward.bands else None
    if banded is None:
        return {**pair, **_forms(plan, code.row_scores)}
    return {
        **pair,
        **_forms(plan, banded.score),
        "headers": (*names["headers"], "cuda/band.h"),
        "band_places": band_places(variant, plan.forward.groups),
        "bands": [
            {"name": band.name, "element": band.element, "load": scores(code, variant, band.load, tail=False)}
            for band in banded.bands
        ],
    }


def _bounds(plan: Plan) -> Mapping[str, object]:
    """The tests that find tiles: in 32 bits, where a scheduler asks."""
    code = plan.code
    assert isinstance(plan.forward, Forward)
    if plan.forward.finds != "scheduler" or code.narrow is None:
        return {}
    return {
        "tile_test": body(code, plan.variant, code.narrow.tile_test),
        "key_ranges": body(code, plan.variant, code.narrow.key_ranges),
        "span": "Span32",
    }


def _forms(plan: Plan, found: RowScores | None) -> Mapping[str, object]:
    """The functions that make scores and exponents of q · k."""
    if found is None:
        return {"score_forms": (), "tested": None, "of_block": None}
    variant, code = plan.variant, plan.code
    snippets = {"score": found.score, "exponents": found.exponent}
    if found.near is not None:
        snippets["exponents_near"] = found.near
    of_block = _of_block([*snippets.values()])
    fixed = [] if of_block is None else [line for line in found.score.row if line in of_block.lines]
    forms = []
    for name, snippet in snippets.items():
        rest = Snippet(tuple(line for line in snippet.row if line not in fixed), snippet.pair, snippet.results)
        forms.append(ScoreForm(name, _FORMS[name], scores(code, variant, rest, tail=False)))
    tested = found.tested and {
        "piece": scores(code, variant, found.tested, tail=False),
        "results": found.tested.results,
    }
    piece = of_block and scores(code, variant, Snippet(of_block.lines, (), ("",)), tail=False)
    return {
        "score_forms": tuple(forms),
        "tested": tested,
        "of_block": of_block and {"piece": piece, "fields": of_block.fields},
    }


_FORMS = {
    "score": "From q · k of one of a lane's rows to scores. Of pairs that the mask excludes too.",
    "exponents": "The same to exponents of 2, less a reference, which is one.",
    "exponents_near": "The same where `most_tested` is kTanhNear at most.",
}


@dataclass(frozen=True)
class OfBlock:
    """Statements that read params once for all of a block's rows, and the type and name of what each declares."""

    lines: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]


_MOST_OF_BLOCK = 4  # numbers that a thread keeps


def _of_block(snippets: list[Snippet]) -> OfBlock | None:
    """Of statements that all of the snippets have; None of none, or of more than a thread should keep."""
    lines, varying = [], {"i", "q", "first", "reference"}
    for line in snippets[0].row:
        name, value = declared(line)
        read = ".load(" in value and all(line in snippet.row for snippet in snippets)
        if read and varying.isdisjoint(_NAME.findall(value)):
            lines.append(line)
        else:
            varying.add(name)
    fields = tuple((line.split()[1], declared(line)[0]) for line in lines)
    return OfBlock(tuple(lines), fields) if 0 < len(lines) <= _MOST_OF_BLOCK else None


def _is_short(plan: Plan, but: tuple[type, ...] = ()) -> bool:
    """Whether a mask is a few instructions a pair: without params, functions, divisions and remainders, ``but`` some."""
    variant = plan.variant
    if variant.mask is None:
        return True
    tree = parse(variant.mask.resolved, params={param.name: param for param in variant.params}, expect="mask")
    long = tuple({Read, Call} - set(but))
    return not any(isinstance(node, long) or (isinstance(node, Binary) and node.op in "//%") for node in walk(tree))
