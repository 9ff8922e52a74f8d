"""What goes wrong, said the same way everywhere: where, what, and a hint.

Every stage of the compiler raises one subclass of :class:`FagenError`, which carries *all* the problems the
stage found, so that a user mends a file once instead of once a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """One mistake.

    ``path``, ``line`` and ``column`` say where (line and column count from 1; None where there is no file or no
    place in it), ``message`` says what was found and what was expected, ``hint`` how to mend it.
    """

    message: str
    path: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part is not None)
        text = f"error: {place}: {self.message}" if place else f"error: {self.message}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class FagenError(Exception):
    """Base of all errors a user can cause. ``exit_code`` is what the command line returns for it."""

    exit_code = 1

    def __init__(self, problems: list[Problem] | tuple[Problem, ...] | Problem | str):
        if isinstance(problems, str):
            problems = Problem(problems)
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class SpecError(FagenError):
    """The spec file is not valid."""

    exit_code = 2


class UsageError(FagenError):
    """The command line, or a variable of the environment, says what cannot be meant."""

    exit_code = 2


class PlanError(FagenError):
    """The spec is valid but its target cannot do what it asks."""

    exit_code = 3


class ToolchainError(FagenError):
    """A compiler, ninja or a header is missing or too old."""

    exit_code = 4


class CompileError(FagenError):
    """A compiler refused a rendered source."""

    exit_code = 5


class CheckError(FagenError):
    """A variant computes a wrong number."""

    exit_code = 6


class LockError(FagenError):
    """A folder cannot be written, its disk is full, or it holds what no build made."""

    exit_code = 7
