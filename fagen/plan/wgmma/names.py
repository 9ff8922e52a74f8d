"""The names that the wgmma templates see. A template prints these and decides nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...expr.code import Snippet
from ...runtime.language import Binary, Call, Read, parse, walk
from ..mma.names import expression_names, shared_names
from ..model import Plan
from ..pieces import scores
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
    names = expression_names(plan, "kRoom", "p.unit")
    return {
        **names,
        **_scores(plan, names),
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
        "of_key": None if plan.code.mask is None else OfKey.of(plan.code.mask),
        "rows_first": True,
        "exclude": "exclude_pairs_unrolled" if short else "exclude_rows",
        "exclude_header": "exclude_unrolled" if short else "exclude_rows",
        "excluding_test": "pair_test" if short else "rows_test",
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
_DECLARATION = re.compile(r"const \w+ (\w+) = (.*);")


@dataclass(frozen=True)
class OfKey:
    """The statements of a pair that are of its key alone, what they declare, and the other ones."""

    lines: tuple[str, ...]
    names: tuple[str, ...]
    others: tuple[str, ...]

    @classmethod
    def of(cls, piece: Snippet) -> OfKey:
        """Of a Snippet in scalars."""
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
        return cls(tuple(lines), tuple(names), tuple(others))


def declared(line: str) -> tuple[str, str]:
    """The name that a statement declares, and its value."""
    match = _DECLARATION.fullmatch(line)
    assert match is not None, line
    return match[1], match[2]


def _scores(plan: Plan, names: Mapping[str, Any]) -> Mapping[str, object]:
    """How the scores of tiles are printed, and that of one pair, which has all it reads from memory."""
    assert isinstance(plan.forward, Forward)
    variant, code = plan.variant, plan.code
    banded = code.banded_score if plan.forward.bands else None
    if banded is None:
        return {"pair_score": names["full_scores"]}
    return {
        "pair_score": names["full_scores"],
        "headers": (*names["headers"], "cuda/band.h"),
        "band_places": band_places(variant, plan.forward.groups),
        "bands": [
            {"name": band.name, "element": band.element, "load": scores(code, variant, band.load, tail=False)}
            for band in banded.bands
        ],
        "full_scores": scores(code, variant, banded.score, tail=False),
    }


def _is_short(plan: Plan) -> bool:
    """Whether a mask is a few instructions a pair: without params, functions, divisions and remainders."""
    variant = plan.variant
    if variant.mask is None:
        return True
    tree = parse(variant.mask.resolved, params={param.name: param for param in variant.params}, expect="mask")
    long = (Read, Call)
    return not any(isinstance(node, long) or (isinstance(node, Binary) and node.op in "//%") for node in walk(tree))
