"""Timing that survives a busy machine: candidates take turns, and medians are compared.

One candidate's whole measurement before another's would hand whatever the machine did in between (clock, caches, a
neighbour) to one of them. So each round runs every candidate once, in an order that rotates, and the figure is the
ratio of medians over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Timing:
    """Seconds a call took: the median over rounds, and the quartiles around it."""

    median: float
    low: float
    high: float

    @property
    def spread(self) -> float:
        """Interquartile range over the median."""
        return (self.high - self.low) / self.median


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


def interleave(candidates: Mapping[str, Callable[[], object]], timer: Timer, *, rounds: int = 9) -> dict[str, Timing]:
    """Time every candidate in ``rounds`` rounds, one sample of each a round."""
    names = list(candidates)
    take = {name: timer.ready(candidates[name]) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(take[name]())
    return {name: _summary(values) for name, values in samples.items()}


def _summary(values: list[float]) -> Timing:
    if len(values) == 1:
        return Timing(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(median, low, high)
