"""From results to the fastest candidate of each variant: only one that has passed its whole check can be that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.check.report import FAILED
from .folder import label_of
from .results import Results, Timed

# A candidate that is faster by less is not worth leaving what the planner chooses anyway: runs differ by as much.
LEAST_GAIN = 1.01


@dataclass(frozen=True)
class Winner:
    """The fastest candidate of a variant, for one direction, by the geometric mean over sizes; ``gain``: times as fast
    as the planner's own choice (1 if it is that), NaN where that was not measured."""

    variant: str
    shape: str
    target: str
    version: int
    name: str
    tiles: dict[str, int | str]
    gain: float
    tried: int
    card: str
    date: str
    milliseconds: dict[str, float]
    direction: str = "forward"

    @property
    def label(self) -> str:
        """For people."""
        return label_of(self.variant, self.direction)


def ranking(results: Results, shape: str, target: str, direction: str) -> list[str]:
    """Keys of a variant's candidates for a direction, from the fastest on, those that failed the check left out. The
    planner's own choice is first where none is faster by LEAST_GAIN."""
    timed = _newest(results, shape, target, direction)
    if not timed:
        return []
    shared = set.intersection(*(set(each.seconds) for each in timed))
    keys = [key for key in shared if (found := results.checked.get(key)) is not None and found.verdict != FAILED]
    means = {key: _mean(timed, key) for key in keys}
    own = timed[0].own
    return sorted(keys, key=lambda key: (means[key] / (LEAST_GAIN if key == own else 1), timed[0].names[key]))


def winners(results: Results) -> list[Winner]:
    """Those of all variants that have one, in the order in which they were measured."""
    found = []
    for place in dict.fromkeys(place[:3] for place in results.timed):
        shape, target, direction = place
        timed = _newest(results, shape, target, direction)
        order = ranking(results, shape, target, direction)
        key = next((key for key in order if results.checked[key].complete), None)
        # One that is faster and has not been checked to the end may yet be the winner.
        if key is None or key != order[0]:
            continue
        last = timed[-1]
        gain = _mean(timed, last.own) / _mean(timed, key) if last.own in last.seconds else math.nan
        found.append(
            Winner(
                variant=last.variant,
                shape=shape,
                target=target,
                version=last.version,
                name=last.names[key],
                tiles=dict(last.tiles[key]),
                gain=gain,
                tried=len(last.seconds),
                card=last.card,
                date=last.date,
                milliseconds={each.size: each.seconds[key] * 1e3 for each in timed},
                direction=direction,
            )
        )
    return found


def table(found: Sequence[Winner]) -> str:
    """A line for each, and what it gains."""
    rows = [("variant", "fastest", "of", "beside the planner's own")]
    for each in found:
        gain = "is that" if each.gain == 1 else "that failed" if math.isnan(each.gain) else f"{each.gain:.3f}×"
        rows.append((each.label, each.name, str(each.tried), gain))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _newest(results: Results, shape: str, target: str, direction: str) -> list[Timed]:
    """What was measured on the card, by the planner and of the candidates that were measured last: a ratio between
    runs on two cards means nothing."""
    timed = [each for place, each in results.timed.items() if place[:3] == (shape, target, direction)]
    return [
        each
        for each in timed
        if (each.card, each.version, each.own, each.seconds.keys())
        == (timed[-1].card, timed[-1].version, timed[-1].own, timed[-1].seconds.keys())
    ]


def _mean(timed: Sequence[Timed], key: str) -> float:
    """Geometric, of seconds over sizes."""
    return math.exp(sum(math.log(each.seconds[key]) for each in timed) / len(timed))
