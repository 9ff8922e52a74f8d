"""Timing that survives a busy machine: candidates take turns, and medians are compared.

One candidate's whole measurement before another's would hand whatever the machine did in between (clock, caches, a
neighbour) to one of them. So each round runs every candidate once, in an order that rotates, and the figure is the
ratio of medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

Context = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Timing:
    """Seconds a call took: the median over rounds, and the 20th and 80th percentile."""

    median: float
    p20: float
    p80: float


@dataclass(frozen=True)
class How:
    """What a sample is: as it stands, one call that finds its inputs in memory.

    ``sustained`` has calls follow each other for so many seconds, which brings a card to its power limit. ``graph``
    replays a CUDA graph of the call in its place. ``host`` is the processor time that a call takes to be put into the
    card's queue; it is none of a card's times, and excludes the others.
    """

    sustained: float | None = None
    graph: bool = False
    host: bool = False

    def __str__(self) -> str:
        words = ("sustained" * (self.sustained is not None), "graph" * self.graph, "host" * self.host)
        return " ".join(word for word in words if word)


class Timer(Protocol):
    """How one sample is taken."""

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """Warm ``call`` up; what comes back takes a sample: the seconds of one call."""


@dataclass(frozen=True)
class WallTimer:
    """The clock on the wall, for calls that have done their work when they return.

    A sample repeats short calls until it lasts ``sample_seconds``.
    """

    sample_seconds: float = 0.02

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """See Timer."""
        count = _calls_for(call, self.sample_seconds)

        def sample() -> float:
            start = time.perf_counter()
            for _ in range(count):
                call()
            return (time.perf_counter() - start) / count

        return sample


def _calls_for(call: Callable[[], object], at_least: float) -> int:
    """How many calls make a sample of ``at_least`` seconds, after a warm-up."""
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    return max(1, round(at_least / once))


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    timer: Timer,
    *,
    rounds: int = 9,
    contexts: Mapping[str, Context] | None = None,
) -> dict[str, Timing]:
    """Time every candidate in ``rounds`` rounds, one sample of each a round.

    A candidate is warmed up and sampled within its context, if it has one; what entering that takes is in no sample.
    """
    names = list(candidates)
    around: dict[str, Context] = {**dict.fromkeys(names, nullcontext), **(contexts or {})}
    take = {}
    for name in names:
        with around[name]():
            take[name] = timer.ready(candidates[name])
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            with around[name]():
                samples[name].append(take[name]())
    return {name: _summary(values) for name, values in samples.items()}


def _summary(values: list[float]) -> Timing:
    if len(values) == 1:
        return Timing(values[0], values[0], values[0])
    p20, _, _, p80 = statistics.quantiles(values, n=5, method="inclusive")
    return Timing(statistics.median(values), p20, p80)
