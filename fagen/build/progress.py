"""What a build tells while it works. The command line draws bars; this has the plain forms and needs nothing."""

from __future__ import annotations

import sys
from typing import Protocol, TextIO


class Progress(Protocol):
    """Receives a build's events, in order and from one thread."""

    def note(self, text: str) -> None:
        """Something worth a line, as `waiting for another build of cpu`."""

    def stage(self, text: str, total: int) -> None:
        """A stage of ``total`` steps begins (0: of unknown length), as `compile`."""

    def start(self, step: str) -> None:
        """A step of the stage begins, as `causal_d64 forward`."""

    def finish(self, step: str, detail: str) -> None:
        """A step has ended; ``detail`` says how, as `8.1 s, 310 MiB`."""

    def close(self) -> None:
        """The build has ended, well or not."""


class Silent:
    """Says nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def stage(self, text: str, total: int) -> None:
        """Nothing."""

    def start(self, step: str) -> None:
        """Nothing."""

    def finish(self, step: str, detail: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Plain(Silent):
    """One line for each step that ended, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None):
        self._stream = sys.stderr if stream is None else stream
        self._stage, self._total, self._done = "", 0, 0

    def note(self, text: str) -> None:
        """A line of its own."""
        print(text, file=self._stream, flush=True)

    def stage(self, text: str, total: int) -> None:
        """Counts steps from 1 again."""
        self._stage, self._total, self._done = text, total, 0

    def finish(self, step: str, detail: str) -> None:
        """As `compile [3/48] causal_d64 forward: 8.1 s, 310 MiB`."""
        self._done += 1
        count = f" [{self._done}/{self._total}]" if self._total else ""
        self.note(f"{self._stage}{count} {step}{': ' if detail else ''}{detail}")
