"""Mutates the kernels and says which mistakes the check does not find.

    python tests/cpu/mutation/run.py                     all of them (an hour or so on two cores)
    python tests/cpu/mutation/run.py --sample 40         some, chosen by --seed
    python tests/cpu/mutation/run.py --only forward:rich --function attend_block
    python tests/cpu/mutation/run.py --keys FILE         those that it names, a key a line

Exits with 1 if a mutant survived that equivalent/*.toml do not list, if one is listed there that no longer exists or
was found, or if the kernels fail the check as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from listed import listed  # noqa: E402
from mutate import Mutant, mutants  # noqa: E402
from outcomes import HEADERS, KINDS, SAME_CODE, SURVIVED  # noqa: E402
from subjects import SUBJECTS  # noqa: E402
from workers import Worker, text_of, trials  # noqa: E402


def all_mutants() -> list[Mutant]:
    """Of every subject's kernels and of the headers; what subjects or directions share counts once, for the first."""
    alike: dict[tuple[str, ...], list[Mutant]] = {}
    for name, subject in SUBJECTS.items():
        for direction, source in subject.sources.items():
            if subject.forward_only and direction != "forward":
                continue
            for mutant in mutants(f"{direction}:{name}", source.text):
                # The two kernels of a variant ask the same mask of the same tiles.
                side = "" if mutant.function in ("mask_test", "tile_test") else direction
                place = (side, mutant.function, str(mutant.nth), mutant.before, mutant.after)
                alike.setdefault(place, []).append(mutant)
    found = [replace(first, also=tuple(others)) for first, *others in alike.values()]
    for header in HEADERS:
        found += mutants(header, text_of(header))
    return found


def sample(every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, as good as random, but an edit elsewhere in a kernel changes little of the choice."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    return sorted(every, key=rank)[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--only", help="a file, as forward:rich or cpu/softmax.h")
    parser.add_argument("--function")
    parser.add_argument("--keys", type=Path, help="a file of mutants' keys, one a line")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="a line for each mutant")
    options = parser.parse_args()
    every = all_mutants()
    keys = None if options.keys is None else options.keys.read_text().splitlines()
    chosen = [
        mutant
        for mutant in every
        if options.only in (None, mutant.file)
        and options.function in (None, mutant.function)
        and (keys is None or mutant.key in keys)
    ]
    if options.sample is not None:
        chosen = sample(chosen, options.sample, options.seed)
    with Worker() as worker:
        faults = worker.faults_of_the_unchanged(list(SUBJECTS))
    if faults:
        print(*faults, sep="\n")
        return 1
    count, wrong = judge(chosen, every, options.jobs, verbose=options.verbose)
    print(", ".join(f"{number} {kind}" for kind, number in count.most_common()) or "no mutants")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def judge(
    chosen: Sequence[Mutant], every: Sequence[Mutant], jobs: int, *, verbose: bool = False
) -> tuple[Counter[str], list[str]]:
    """Try them: how many ended how, and, in a line each, what is not as the list of equivalent mutants has it."""
    known = listed()
    count: Counter[str] = Counter()
    wrong = [f"listed, but matches no mutant: {name}" for name in known.matching_nothing(m.key for m in every)]
    for trial in trials(chosen, jobs):
        key = trial.mutant.key
        kind = trial.outcome if trial.outcome in KINDS else "found"
        count["equivalent" if kind == SURVIVED and known.reason(key) else kind] += 1
        if kind == SURVIVED and not known.reason(key):
            wrong.append(f"survived: {key}")
        if known.named(key) and kind not in (SURVIVED, SAME_CODE):
            wrong.append(f"listed as equivalent, but {trial.outcome}: {key}")
        if verbose:
            print(f"{trial.outcome}, {trial.seconds:.1f} s: {key}", flush=True)
    return count, wrong


if __name__ == "__main__":
    sys.exit(main())
