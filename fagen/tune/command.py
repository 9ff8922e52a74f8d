"""The measuring step as both commands take it. No typer here: one of them runs where there is nothing but torch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..bench.run import Options
from ..errors import Problem, UsageError
from ..size import parse_size
from .folder import read_sweep
from .measure import Measuring
from .results import Results
from .winners import Winner, table, winners

RESULTS = "results.jsonl"
TEXTS = {
    "results": "Where measurements are kept, and looked up by the next run; else FOLDER/results.jsonl.",
    "budget": "Seconds after which nothing more is begun; the same command goes on from there.",
    "length": "Sequences of this length, of 16384 tokens in all; may be repeated. All lengths count alike.",
}


def options(variants: Sequence[str], sizes: Sequence[str], lengths: Sequence[int], rounds: int) -> Options:
    """What a command line asks for. Raises UsageError for what cannot be meant."""
    if rounds < 3:
        raise UsageError(Problem(f"--rounds: {rounds} are too few", hint="at least 3"))
    return Options(
        sizes=tuple(parse_size(text) for text in sizes), lengths=tuple(lengths), variants=tuple(variants), rounds=rounds
    )


def measure(
    folder: Path,
    results: Path | None,
    wanted: Options,
    budget: float | None,
    out: Callable[[str], None] = print,
    tell: Callable[[str], None] | None = None,
) -> list[Winner]:
    """Measure what is not yet, and print the fastest. Raises FagenError."""
    tell = tell or _tell
    sweep = read_sweep(folder)
    kept = Results(results or folder / RESULTS)
    if kept.damaged:
        tell(f"{kept.path}: {kept.damaged} lines cannot be read; what they held is measured again")
    all_done = Measuring(folder, sweep, kept, wanted, budget, tell).run()
    found = winners(kept)
    if found:
        out(table(found))
    known = {(winner.shape, winner.direction) for winner in found}
    missing = [each.label for each in sweep.variants if (each.shape, each.direction) not in known]
    if missing:
        tell(f"nothing is known yet of {', '.join(missing)}")
    if not all_done:
        tell("the budget was over before all was measured; the same command goes on from there")
    return found


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
