"""Checks the variants of a module folder in worker processes, some at a time, within a time budget. No torch here."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from .report import FAILED, Failure, VariantReport, repeat
from .where import Where
from .worker import START

# A case takes well under a second; a kernel that is silent for this long hangs. The first covers importing torch.
START_SECONDS = 120.0
HANG_SECONDS = 60.0
EMULATOR_HANG_SECONDS = 600.0  # the emulator tells by itself when nothing moves; translating a kernel takes its time
# A build's check must not starve its last variants: each has at least this long.
LEAST_SECONDS = 1.5

_SIGNALS = {
    signal.SIGSEGV: "it read or wrote outside its tensors",
    signal.SIGBUS: "it read or wrote outside its tensors",
    signal.SIGILL: "it used an instruction that this CPU lacks",
    signal.SIGFPE: "it divided by zero",
}


class Watcher(Protocol):
    """Hears of variants as they are checked, from one thread."""

    def start(self, step: str) -> None:
        """A variant's check begins."""

    def finish(self, step: str, detail: str) -> None:
        """It has ended, with this verdict."""


@dataclass(frozen=True)
class Wish:
    """What to run, and where: ``case`` alone if given; ``level`` "auto" or "full"; ``command`` begins what repeats it,
    up to the variant's name."""

    seed: int
    level: str = "auto"
    case: str | None = None
    command: str = ""
    where: Where = Where()


def check_variants(
    folder: Path,
    names: Sequence[str],
    wish: Wish,
    *,
    budget: float | None = None,
    jobs: int = 2,
    hang: float | None = None,
    counts: Path | None = None,
    watcher: Watcher | None = None,
) -> list[VariantReport]:
    """The reports of ``names``, variants of the module in ``folder``, in their order.

    ``budget`` is for all of them together, in seconds (None: as long as it takes). A kernel that crashes, or is silent
    for ``hang`` seconds (None: as long as is usual), fails its variant and no other. If the library is one that counts
    lines, ``counts`` is the folder that gets its counts.
    """
    if hang is None:
        hang = EMULATOR_HANG_SECONDS if wish.where.emulator else HANG_SECONDS
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        tasks.put(name)
    events: queue.SimpleQueue[tuple[str, VariantReport | None] | BaseException | None] = queue.SimpleQueue()
    jobs = max(1, min(jobs, len(names)))
    end = None if budget is None else time.monotonic() + budget
    stop = threading.Event()

    def work() -> None:
        worker: _Worker | None = None
        try:
            while not stop.is_set():
                try:
                    name = tasks.get_nowait()
                except queue.Empty:
                    break
                events.put((name, None))
                if worker is None or not worker.alive():
                    worker = _Worker(folder, hang, counts, wish.where)
                share = None
                if end is not None:
                    share = max(LEAST_SECONDS, (end - time.monotonic()) * jobs / (tasks.qsize() + jobs))
                report = worker.check(name, wish, share)
                events.put((name, report))
                if report.verdict == FAILED and wish.where.device != "cpu":
                    worker.close()  # a card's error may outlast the launch that made it
        except BaseException as error:  # shown by the thread that waits
            events.put(error)
        finally:
            if worker is not None:
                worker.close(gently=counts is not None)
            events.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    reports: dict[str, VariantReport] = {}
    try:
        running = jobs
        while running:
            event = events.get()
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                name, report = event
                if report is None:
                    if watcher:
                        watcher.start(name)
                else:
                    reports[name] = report
                    if watcher:
                        watcher.finish(name, f"{report.verdict}, {report.seconds:.1f} s")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return [reports[name] for name in names]


class _Worker:
    """One process of :mod:`.worker`."""

    def __init__(self, folder: Path, hang: float, counts: Path | None, where: Where):
        self.hang, self.counts = hang, counts
        # gcov's runtime writes to this folder instead of that of the objects.
        counting = {} if counts is None else {"GCOV_PREFIX": str(counts), "GCOV_PREFIX_STRIP": "1000"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, str(folder), where.device, where.title, where.emulator],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **counting, **({"FAGEN_CACHE_DIR": where.cache} if where.cache else {})},
        )
        self.answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.noise: list[str] = []
        self.readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_noise, daemon=True),
        ]
        for reader in self.readers:
            reader.start()
        self.fresh = True

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(json.loads(line))
        self.answers.put(None)

    def _read_noise(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.noise.append(line.rstrip())
            del self.noise[:-40]

    def alive(self) -> bool:
        return self.process.poll() is None

    def check(self, name: str, wish: Wish, budget: float | None) -> VariantReport:
        """The report on one variant, also if the process dies or is silent."""
        begun = time.monotonic()
        asked = {"seed": wish.seed, "level": wish.level, "case": wish.case, "command": wish.command}
        request = {"variant": name, "budget": budget, **asked}
        case = "loading the module"
        seen: list[str] = []
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has died: the next answer says so
        while True:
            try:
                answer = self.answers.get(timeout=max(START_SECONDS, self.hang) if self.fresh else self.hang)
            except queue.Empty:
                self.close()
                what, message = "hang", f"the kernel did not return within {self.hang:g} s"
                break
            if answer is None:
                what, message = "crash", self._epitaph()
                break
            self.fresh = False
            if "report" in answer:
                return VariantReport.from_json(answer["report"])
            if "case" in answer:
                case = answer["case"]
                seen.append(case)
        return VariantReport(
            variant=name,
            verdict=FAILED,
            seed=wish.seed,
            level=wish.level,
            cases=tuple(seen),
            failures=(Failure(case, message, measure=what),),
            command=repeat(wish.command, name, wish.seed, wish.level, case if seen else None, wish.where.title),
            on=wish.where.title,
            seconds=time.monotonic() - begun,
        )

    def _epitaph(self) -> str:
        code = self.process.wait()
        for reader in self.readers:
            reader.join(5.0)
        last = next((line for line in reversed(self.noise) if line.strip()), "")
        if code >= 0:
            return f"the process ended with exit code {code}: {last}"
        number = signal.Signals(-code)
        meaning = _SIGNALS.get(number, last)
        return f"the kernel crashed with {number.name}" + (f": {meaning}" if meaning else "")

    def close(self, *, gently: bool = False) -> None:
        """End the process, whatever it is doing. ``gently`` lets it end by itself first, which writes its counts."""
        if gently and self.process.stdin is not None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(START_SECONDS)
        self.process.kill()
        self.process.wait()
        for reader in self.readers:
            reader.join(5.0)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
