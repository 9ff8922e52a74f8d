"""The names that the wgmma templates see. A template prints these and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...expr.code import RowScores, Snippet
from ..mma.names import expression_names, shared_names
from ..model import Plan
from ..pieces import Scores, body, scores
from .backward import Backward, backward_names
from .excluding import NAME_PATTERN, declared, excluding, is_short
from .forward import Forward, band_loads, band_places, planned

__all__ = ["direction_names", "shared_names"]


def direction_names(plan: Plan, direction: str) -> Mapping[str, object]:
    """What the templates of one direction print besides."""
    if direction == "backward":
        assert isinstance(plan.backward, Backward)
        return backward_names(plan.variant, plan.code, plan.backward, short=is_short(plan))
    assert isinstance(plan.forward, Forward)
    forward = plan.forward
    by_head = forward.by_head
    short = is_short(plan)
    names = expression_names(plan, "kRoom", "p.unit", ends=True)
    if plan.variant.dropout:
        names = {**names, "headers": (*names["headers"], "cuda/dropout.h")}
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
        "row_factor": "share" if plan.variant.dropout else "factor",  # of a row's sums
        "or_dropped": f" || !{_KEPT}" if plan.variant.dropout else "",
        "exclude_header": "exclude_unrolled" if short else "exclude_rows",
        **excluding(plan, names),
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
        "bands": band_loads(variant, code, banded),
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


_KEPT = "keeps_pair(p.dropout, part.b * p.shape.heads + part.h, part.i + row, j)"  # a pair of a warp's rows
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
        if read and varying.isdisjoint(NAME_PATTERN.findall(value)):
            lines.append(line)
        else:
            varying.add(name)
    fields = tuple((line.split()[1], declared(line)[0]) for line in lines)
    return OfBlock(tuple(lines), fields) if 0 < len(lines) <= _MOST_OF_BLOCK else None
