"""Processes that try mutants, each started afresh, so that no thread of the one that asks is there when they fork."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mutate import Mutant
from outcomes import SURVIVED, over_all
from subjects import SUBJECTS

from fagen.resources import templates_dir

# A copy, so that an edit during a run is not taken for a mutant's doing.
_copy = tempfile.TemporaryDirectory(prefix="fagen-mutation-")
INCLUDE = Path(shutil.copytree(templates_dir() / "include", Path(_copy.name) / "include"))


def text_of(file: str) -> str:
    """The text of a file that mutants have: a kernel, as forward:rich, or a header, as cpu/softmax.h."""
    direction, colon, name = file.partition(":")
    return SUBJECTS[name].sources[direction].text if colon else (INCLUDE / "fagen" / file).read_text()


@dataclass(frozen=True)
class Trial:
    """How a mutant ended: one of outcomes.KINDS, or the name of the case that found it."""

    mutant: Mutant
    outcome: str
    seconds: float


class Worker:
    """One process of trial.py."""

    def __init__(self, include: Path = INCLUDE) -> None:
        script = Path(__file__).with_name("trial.py")
        # One thread, so that it can fork; and autograd of a CUDA build refuses to run in a forked child.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(include)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **alone},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def try_change(self, file: str, text: str) -> str:
        """How a file with this text ends."""
        return self._ask({"file": file, "text": text})

    def try_mutant(self, mutant: Mutant) -> Trial:
        """How a mutant ends."""
        begun = time.monotonic()
        outcome = over_all(
            self.try_change(each.file, each.applied(text_of(each.file))) for each in (mutant, *mutant.also)
        )
        return Trial(mutant, outcome, time.monotonic() - begun)

    def faults_of_the_unchanged(self, names: Sequence[str]) -> list[str]:
        """What is wrong with these subjects' kernels as they are, in a line each; no mutant can be judged by them."""
        outcomes = {name: self._ask({"unchanged": name}) for name in names}
        return [
            f"{name}, with no mistake in it: {outcome}" for name, outcome in outcomes.items() if outcome != SURVIVED
        ]

    def _ask(self, request: dict[str, Any]) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"trial.py ended with exit code {self._process.wait()}")
        outcome: str = json.loads(answer)
        return outcome


def trials(chosen: Sequence[Mutant], jobs: int) -> Iterator[Trial]:
    """Try them, ``jobs`` at a time, as they end."""
    waiting: queue.SimpleQueue[Mutant | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Trial | BaseException] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    for _ in range(jobs):
        waiting.put(None)

    def work() -> None:
        try:
            with Worker() as worker:
                while (mutant := waiting.get()) is not None:
                    ended.put(worker.try_mutant(mutant))
        except BaseException as error:  # raised by the thread that waits
            ended.put(error)

    for _ in range(min(jobs, len(chosen))):
        threading.Thread(target=work, daemon=True).start()
    for _ in chosen:
        trial = ended.get()
        if isinstance(trial, BaseException):
            raise trial
        yield trial
