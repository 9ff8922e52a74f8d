"""The progress bar: how far a build is, and what is compiling right now."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_SHOWN_STEPS = 3


class Bar:
    """Draws a build's events on stderr, one bar a stage; failures and notes stay as lines above it."""

    def __init__(self, console: Console | None = None) -> None:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[running]}", markup=False),
        )
        self._progress = Progress(*columns, console=console or Console(stderr=True))
        self._task: TaskID | None = None
        self._running: list[str] = []

    def note(self, text: str) -> None:
        """A line above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def stage(self, text: str, total: int) -> None:
        """A new bar; the last one stays, full."""
        self._running = []
        self._progress.start()
        self._task = self._progress.add_task(text, total=total or None, running="")

    def start(self, step: str) -> None:
        """Names the step beside the bar."""
        self._running.append(step)
        self._show(0)

    def finish(self, step: str, detail: str) -> None:
        """Moves the bar on by one."""
        if step in self._running:
            self._running.remove(step)
        if detail.startswith("failed"):
            self.note(f"{step}: {detail}")
        self._show(1)

    def close(self) -> None:
        """Leaves the bars as they are and gives the terminal back."""
        self._progress.stop()

    def _show(self, steps: int) -> None:
        if self._task is not None:
            names = ", ".join(self._running[:_SHOWN_STEPS]) + (" …" if len(self._running) > _SHOWN_STEPS else "")
            self._progress.update(self._task, advance=steps, running=names)
