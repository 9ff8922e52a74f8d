"""The command of `python -m mutation.cpu` and `mutation.cuda`: which mutants to try, and what to say of them.

    ...                                 all of them
    ... --sample 40                     some, chosen by --seed
    ... --only forward:rich --function attend_block
    ... --keys FILE                     those that it names, a key a line
    ... --results FILE                  writes outcomes there; what it has of the same texts is not tried again

Exits with 1 if a mutant survived that equivalent/*.toml do not list, if one is listed there that no longer exists or
was found, or if the kernels fail the check as they are.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .listed import Listed, listed
from .mutate import Mutant
from .outcomes import KINDS, SAME_CODE, SURVIVED
from .workers import Trial, Worker, copied_headers, trials


@dataclass(frozen=True)
class Program:
    """One kind of kernels: ``name`` is the package's, ``every`` its mutants, ``subjects`` the kernels that are mutated
    or use what is; ``text_of`` gives the text of a file of theirs."""

    name: str
    every: tuple[Mutant, ...]
    subjects: tuple[str, ...]
    text_of: Callable[[str], str]

    def worker(self, include: Path | None = None) -> Worker:
        """A process that tries mutants; ``include`` has the headers, if not those as they are."""
        return Worker(f"mutation.{self.name}.trial", self.text_of, include)

    @property
    def known(self) -> Listed:
        """The mutants that compute what the kernel does."""
        return listed(Path(__file__).parent / self.name / "equivalent")

    @cached_property
    def digest(self) -> str:
        """Of all texts that are mutated or included."""
        texts = [self.text_of(file) for file in sorted({mutant.file for mutant in self.every})]
        texts += [header.read_text() for header in sorted(copied_headers().rglob("*.h"))]
        return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]

    def unlisted(self) -> list[Mutant]:
        """Those that must be found."""
        known = self.known
        return [mutant for mutant in self.every if known.reason(mutant.key) is None]


def sample(every: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, as good as random, but an edit elsewhere in a kernel changes little of the choice."""

    def rank(mutant: Mutant) -> str:
        return hashlib.sha256(f"{seed} {mutant.key}".encode()).hexdigest()

    return sorted(every, key=rank)[:count]


def main(program: Program) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog=f"mutation.{program.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sample", type=int, help="so many mutants, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of that choice")
    parser.add_argument("--only", help="a file, as forward:rich or cpu/softmax.h")
    parser.add_argument("--function")
    parser.add_argument("--keys", type=Path, help="a file of mutants' keys, one a line")
    parser.add_argument("--results", type=Path, help="a file of outcomes, one a line, to go on from")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="a line for each mutant")
    options = parser.parse_args()
    keys = None if options.keys is None else set(options.keys.read_text().splitlines())
    chosen = [
        mutant
        for mutant in program.every
        if options.only in (None, mutant.file)
        and options.function in (None, mutant.function)
        and (keys is None or mutant.key in keys)
    ]
    if options.sample is not None:
        chosen = sample(chosen, options.sample, options.seed)
    with program.worker() as worker:
        faults = worker.faults_of_the_unchanged(program.subjects)
    if faults:
        print(*faults, sep="\n")
        return 1
    ended = _trials(program, chosen, options.jobs, options.results, verbose=options.verbose)
    count, wrong = judge(program, ended)
    print(", ".join(f"{number} {kind}" for kind, number in count.most_common()) or "no mutants")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


def _trials(
    program: Program, chosen: Sequence[Mutant], jobs: int, results: Path | None, *, verbose: bool
) -> Iterator[Trial]:
    """Trials of all chosen; ``results`` has those of an earlier run, and takes the others."""
    done: dict[str, Trial] = {}
    if results is not None and results.exists():
        by_key = {mutant.key: mutant for mutant in chosen}
        for line in results.read_text().splitlines():
            found = json.loads(line)
            if found["of"] == program.digest and found["key"] in by_key:
                done[found["key"]] = Trial(by_key[found["key"]], found["outcome"], found["seconds"])
    yield from done.values()
    left = [mutant for mutant in chosen if mutant.key not in done]
    for number, trial in enumerate(trials(program.worker, left, jobs), 1):
        if results is not None:
            with results.open("a") as file:
                entry = {"key": trial.mutant.key, "outcome": trial.outcome, "seconds": round(trial.seconds, 1)}
                file.write(json.dumps({"of": program.digest, **entry}) + "\n")
        if verbose:
            print(f"{number}/{len(left)}: {trial.outcome}, {trial.seconds:.1f} s: {trial.mutant.key}", flush=True)
        yield trial


def judge(program: Program, ended: Iterator[Trial]) -> tuple[Counter[str], list[str]]:
    """How many ended how, and, in a line each, what is not as the list of equivalent mutants has it."""
    known = program.known
    count: Counter[str] = Counter()
    wrong = [f"listed, but matches no mutant: {name}" for name in known.matching_nothing(m.key for m in program.every)]
    for trial in ended:
        key = trial.mutant.key
        kind = trial.outcome if trial.outcome in KINDS else "found"
        count["equivalent" if kind == SURVIVED and known.reason(key) else kind] += 1
        if kind == SURVIVED and not known.reason(key):
            wrong.append(f"survived: {key}")
        if known.named(key) and kind not in (SURVIVED, SAME_CODE):
            wrong.append(f"listed as equivalent, but {trial.outcome}: {key}")
    return count, wrong


def judge_all(program: Program, jobs: int) -> tuple[Counter[str], list[str]]:
    """Try every mutant, and say the same of them."""
    return judge(program, trials(program.worker, program.every, jobs))


def run(program: Program) -> None:
    """Be the command."""
    sys.exit(main(program))
