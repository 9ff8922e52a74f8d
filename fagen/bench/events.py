"""Timing on a card: by its own clock, one call with the host out of the way and the cache cold, or calls back to back;
of a CUDA graph in a call's place; and what a call takes of the host.

``cuda`` is torch.cuda throughout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .measure import Timer

FLUSHED = 256 * 2**20  # bytes written before each call: more than the L2 of any card holds
_WARM_UPS = 3
_CYCLES = 2e9  # the card's a second, about
_LONGEST = 0.05  # seconds that a spin may take
_TRIES = 5
_PROBES = 5  # calls that say how many are back to back in a sample
_HOST_CALLS = 100  # of a sample: fewer than a card's queue holds, though each be several launches


class CardTimer:
    """Events around one call, behind a kernel that spins while the host gets the call's launches into the queue.

    Where the host came late nevertheless, so that the card waited for it, the sample is taken again behind a longer
    spin. A write of FLUSHED bytes comes first, so that every call finds its inputs in memory.

    ``flushed`` is the tensor that is written.
    """

    def __init__(self, cuda: Any, flushed: Any):
        self.cuda = cuda
        self.flushed = flushed

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """See measure.Timer."""
        for _ in range(_WARM_UPS):
            call()
        self.cuda.synchronize()
        begun = time.perf_counter()
        call()
        spin = min(2 * (time.perf_counter() - begun) + 2e-4, _LONGEST)
        self.cuda.synchronize()
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))

        def sample() -> float:
            nonlocal spin
            for _ in range(_TRIES):
                self.flushed.zero_()
                self.cuda._sleep(int(spin * _CYCLES))
                start.record()
                call()
                end.record()
                late = start.query()  # the spin was over before the last launch was in the queue
                end.synchronize()
                if not late:
                    break
                spin = min(2 * spin, _LONGEST)
            milliseconds: float = start.elapsed_time(end)
            return milliseconds / 1e3

        return sample


class SustainedTimer:
    """Calls back to back for ``seconds``, between two events: what a card does that never rests, at the clock that its
    power limit leaves it. A sample is the seconds of one of them."""

    def __init__(self, cuda: Any, seconds: float):
        self.cuda = cuda
        self.seconds = seconds

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """See measure.Timer."""
        start, end = (self.cuda.Event(enable_timing=True) for _ in range(2))

        def lasted(count: int) -> float:
            start.record()
            for _ in range(count):
                call()
            end.record()
            end.synchronize()
            milliseconds: float = start.elapsed_time(end)
            return milliseconds / 1e3

        for _ in range(_WARM_UPS):
            call()
        self.cuda.synchronize()
        count = max(1, round(self.seconds * _PROBES / max(lasted(_PROBES), 1e-6)))
        return lambda: lasted(count) / count


class GraphTimer:
    """What ``timer`` finds of a CUDA graph's replay that holds one call, in the call's place."""

    def __init__(self, cuda: Any, timer: Timer):
        self.cuda = cuda
        self.timer = timer

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """See measure.Timer."""
        cuda = self.cuda
        # A first call may allocate, load and tune, which a capture forbids; on a stream of its own, as torch asks for.
        stream = cuda.Stream()
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call()
        cuda.current_stream().wait_stream(stream)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            outputs = call()

        def replay() -> object:
            graph.replay()
            return outputs  # what the graph writes lives as long as it does

        return self.timer.ready(replay)


class HostTimer:
    """Processor time of this thread that it takes to put a call into the card's queue: seconds a call, of as many as
    the queue holds, so that the thread never waits for the card."""

    def __init__(self, cuda: Any):
        self.cuda = cuda

    def ready(self, call: Callable[[], object]) -> Callable[[], float]:
        """See measure.Timer."""
        for _ in range(_WARM_UPS):
            call()

        def sample() -> float:
            self.cuda.synchronize()
            begun = time.thread_time()
            for _ in range(_HOST_CALLS):
                call()
            return (time.thread_time() - begun) / _HOST_CALLS

        return sample
