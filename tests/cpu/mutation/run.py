"""Mutates the kernels and says which mistakes the check does not find.

    python tests/cpu/mutation/run.py                     all of them (an hour or so on two cores)
    python tests/cpu/mutation/run.py --sample 40         some, chosen by --seed
    python tests/cpu/mutation/run.py --only forward:rich --function attend_block

Exits with 1 if a mutant survived that equivalent.toml does not list, or one is listed there that no longer exists
or was found.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutate import Mutant, mutants  # noqa: E402
from subjects import SUBJECTS  # noqa: E402
from trial import HEADERS, INCLUDE, OTHER_TILES, SAME_CODE, SURVIVED, Trial, try_mutant  # noqa: E402

KINDS = (SURVIVED, SAME_CODE, OTHER_TILES, "not C++", "crashed", "hung")
LIST = Path(__file__).with_name("equivalent.toml")


def all_mutants() -> list[Mutant]:
    """Of every subject's kernels and of the headers; what subjects or directions share is mutated in the first."""
    found: list[Mutant] = []
    seen: set[tuple[str, ...]] = set()
    for name, subject in SUBJECTS.items():
        for direction, source in subject.sources.items():
            for mutant in mutants(f"{direction}:{name}", source.text):
                # The two kernels of a variant ask the same mask of the same tiles.
                side = "" if mutant.function in ("mask_test", "tile_test") else direction
                place = (side, mutant.function, str(mutant.nth), mutant.before, mutant.after)
                if place not in seen:
                    seen.add(place)
                    found.append(mutant)
    for header in HEADERS:
        found += mutants(header, (INCLUDE / header).read_text())
    return found


def sample(every: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, as good as random, but an edit elsewhere in a kernel changes little of the choice."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    return sorted(every, key=rank)[:count]


def equivalents() -> dict[str, str]:
    """The reason why each listed mutant computes what the kernel does, by the mutant's key."""
    groups = tomllib.loads(LIST.read_text())["equivalent"]
    return {key: group["reason"] for group in groups for key in group["mutants"]}


def trials(chosen: Sequence[Mutant], jobs: int) -> Iterator[Trial]:
    """Try them, ``jobs`` at a time."""
    # Forked, so that modules are imported once; nothing here has started a thread.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(try_mutant, chosen)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--only", help="a file, as forward:rich or cpu/softmax.h")
    parser.add_argument("--function")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="a line for each mutant")
    options = parser.parse_args()
    every = all_mutants()
    chosen = [
        mutant
        for mutant in every
        if options.only in (None, mutant.file) and options.function in (None, mutant.function)
    ]
    if options.sample is not None:
        chosen = sample(chosen, options.sample, options.seed)
    count, wrong = judge(chosen, every, options.jobs, verbose=options.verbose)
    print(", ".join(f"{number} {kind}" for kind, number in count.most_common()) or "no mutants")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def judge(
    chosen: Sequence[Mutant], every: Sequence[Mutant], jobs: int, *, verbose: bool = False
) -> tuple[Counter[str], list[str]]:
    """Try them: how many ended how, and, in a line each, what is not as the list of equivalent mutants has it."""
    listed = equivalents()
    count: Counter[str] = Counter()
    wrong = [
        f"listed as equivalent, but there is no such mutant: {key}" for key in listed.keys() - {m.key for m in every}
    ]
    for trial in trials(chosen, jobs):
        known = trial.mutant.key in listed
        kind = trial.outcome if trial.outcome in KINDS else "found"
        count["equivalent" if kind == SURVIVED and known else kind] += 1
        if kind == SURVIVED and not known:
            wrong.append(f"survived: {trial.mutant.key}")
        if known and kind not in (SURVIVED, SAME_CODE):
            wrong.append(f"listed as equivalent, but {trial.outcome}: {trial.mutant.key}")
        if verbose:
            print(f"{trial.outcome}, {trial.seconds:.1f} s: {trial.mutant.key}", flush=True)
    return count, wrong


if __name__ == "__main__":
    sys.exit(main())
