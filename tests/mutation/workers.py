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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from fagen.resources import templates_dir

from .mutate import Mutant
from .outcomes import SURVIVED, over_all

_ROOT = Path(__file__).resolve().parents[2]


@cache
def copied_headers() -> Path:
    """A copy of templates/include, so that an edit during a run is not taken for a mutant's doing."""
    folder = tempfile.TemporaryDirectory(prefix="fagen-mutation-")
    _held.append(folder)
    return Path(shutil.copytree(templates_dir() / "include", Path(folder.name) / "include"))


_held: list[tempfile.TemporaryDirectory[str]] = []  # until the process ends


@dataclass(frozen=True)
class Trial:
    """How a mutant ended: one of outcomes.KINDS, or the name of the case that found it."""

    mutant: Mutant
    outcome: str
    seconds: float


class Worker:
    """One process of ``module``, as mutation.cpu.trial; ``text_of`` gives the text of a file that mutants have."""

    def __init__(self, module: str, text_of: Callable[[str], str], include: Path | None = None) -> None:
        # One thread, so that it can fork; and autograd of a CUDA build refuses to run in a forked child.
        alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        paths = [str(_ROOT), str(_ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._text_of = text_of
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(include or copied_headers())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, **alone, "PYTHONPATH": os.pathsep.join(paths)},
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
            self.try_change(each.file, each.applied(self._text_of(each.file))) for each in (mutant, *mutant.also)
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
            raise RuntimeError(f"what tries mutants ended with exit code {self._process.wait()}")
        outcome: str = json.loads(answer)
        return outcome


def trials(start: Callable[[], Worker], chosen: Sequence[Mutant], jobs: int) -> Iterator[Trial]:
    """Try them, ``jobs`` at a time, as they end."""
    waiting: queue.SimpleQueue[Mutant | None] = queue.SimpleQueue()
    ended: queue.SimpleQueue[Trial | BaseException] = queue.SimpleQueue()
    for mutant in chosen:
        waiting.put(mutant)
    for _ in range(jobs):
        waiting.put(None)

    def work() -> None:
        try:
            with start() as worker:
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


def serve(try_unchanged: Callable[[str], str], try_change: Callable[[str, str], str]) -> None:
    """Answer what stdin asks, until it ends: how the file of a changed text, or an unchanged subject, does. The other
    side of a Worker."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what else anyone prints is no answer
    for line in sys.stdin:
        request = json.loads(line)
        if "unchanged" in request:
            outcome = try_unchanged(request["unchanged"])
        else:
            outcome = try_change(request["file"], request["text"])
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()
