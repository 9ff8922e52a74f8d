"""Timing on a card: the card's own clock around one call, with the host out of the way and the cache cold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

FLUSHED = 256 * 2**20  # bytes written before each call: more than the L2 of any card holds
_WARM_UPS = 3
_CYCLES = 2e9  # the card's a second, about
_LONGEST = 0.05  # seconds that a spin may take
_TRIES = 5


class CardTimer:
    """Events around one call, behind a kernel that spins while the host gets the call's launches into the queue.

    Where the host came late nevertheless, so that the card waited for it, the sample is taken again behind a longer
    spin. A write of FLUSHED bytes comes first, so that every call finds its inputs in memory.

    ``cuda`` is torch.cuda, ``flushed`` the tensor that is written.
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
