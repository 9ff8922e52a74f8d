"""What a check found: frozen records that round-trip through JSON, and a table of them for people. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .where import EMULATOR

PASSED, FAILED, PARTIAL = "passed", "failed", "partial"


@dataclass(frozen=True)
class Failure:
    """The worst thing seen in one case.

    ``measure`` is the rule's clause ("rms", "max", "nan", "inf", "shape"), or "crash", "hang", "error", "memory",
    "fault" (that the emulator found), "tiles" or "repeat"; then ``message`` says what happened and there are no
    numbers. ``ratio`` is the error over what is allowed; ``place`` says where the element lies relative to the tiles.
    """

    case: str
    message: str
    output: str = ""
    measure: str = "error"
    index: tuple[int, ...] = ()
    got: float = math.nan
    want: float = math.nan
    allowed: float = math.nan
    ratio: float = math.inf
    place: str = ""

    def __str__(self) -> str:
        return f"{self.case}: {self.message}" + (f"; {self.place}" if self.place else "")


@dataclass(frozen=True)
class Unrun:
    """Line ``line`` of the rendered source ``file``, which no case ran, and its ``text``."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}"


@dataclass(frozen=True)
class VariantReport:
    """The verdict on one variant.

    ``verdict`` is "passed"; "failed" (a case failed); or "partial" (none did, but time ran out before ``skipped``
    cases; or ``survivors``, mutants of its own expressions, were not told apart from it; or no case ran the lines
    ``unrun`` of the rendered kernels, of the ``lines`` that can run: 0 where none were counted). ``worst`` has the
    largest ratio of error to allowed error of each output. ``equivalent`` counts mutants that are the same function
    and so cannot be killed; they are not in ``mutants``. ``notes`` say what could not be found out. ``command``
    repeats the check (the failed case, if one did). ``on`` names the card that ran the kernels, or is "emulator"; it is
    empty for kernels of the CPU.
    """

    variant: str
    verdict: str
    seed: int
    level: str
    cases: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    worst: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    mutants: int = 0
    killed: int = 0
    equivalent: int = 0
    survivors: tuple[str, ...] = ()
    lines: int = 0
    unrun: tuple[Unrun, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    on: str = ""
    seconds: float = 0.0

    @property
    def ratio(self) -> float:
        """The largest ratio of error to allowed error over all outputs."""
        return max(self.worst.values(), default=0.0)

    def counted(self, lines: int, unrun: tuple[Unrun, ...], note: str) -> VariantReport:
        """This report with what counting lines has found; ``note``, if any, says why it found nothing."""
        verdict = PARTIAL if unrun and self.verdict == PASSED else self.verdict
        return replace(self, verdict=verdict, lines=lines, unrun=unrun, notes=(*self.notes, *((note,) if note else ())))

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars (infinities and NaN as strings); :meth:`from_json` is its inverse."""
        data = {item.name: _plain(getattr(self, item.name)) for item in fields(self)}
        data["failures"] = [
            {item.name: _plain(getattr(failure, item.name)) for item in fields(Failure)} for failure in self.failures
        ]
        data["unrun"] = [vars(line) for line in self.unrun]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VariantReport:
        """The report that :meth:`to_json` wrote."""
        values = dict(data)
        for key in ("cases", "skipped", "survivors", "notes"):
            values[key] = tuple(values[key])
        values["worst"] = {name: float(ratio) for name, ratio in values["worst"].items()}
        values["failures"] = tuple(_failure(entry) for entry in values["failures"])
        values["unrun"] = tuple(Unrun(**entry) for entry in values["unrun"])
        return cls(**values)


@dataclass(frozen=True)
class CheckReport:
    """The verdicts on a module's variants, in their order. ``cached`` names those that were not run again."""

    variants: tuple[VariantReport, ...]
    seed: int
    level: str
    seconds: float = 0.0
    cached: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """ "failed" if any variant failed, else "partial" if any is partial, else "passed"."""
        verdicts = {report.verdict for report in self.variants}
        return next((verdict for verdict in (FAILED, PARTIAL) if verdict in verdicts), PASSED)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars; ``variants`` are those of :meth:`VariantReport.to_json`."""
        return {
            "verdict": self.verdict,
            "seed": self.seed,
            "level": self.level,
            "seconds": round(self.seconds, 3),
            "cached": list(self.cached),
            "variants": [report.to_json() for report in self.variants],
        }

    def summary(self) -> str:
        """One line."""
        count = {verdict: sum(r.verdict == verdict for r in self.variants) for verdict in (PASSED, FAILED, PARTIAL)}
        parts = [f"{n} {verdict}" for verdict, n in count.items() if n or verdict == PASSED]
        killed, mutants = sum(r.killed for r in self.variants), sum(r.mutants for r in self.variants)
        text = f"{', '.join(parts)}; {killed}/{mutants} mutants killed; seed {self.seed}; {self.seconds:.1f} s"
        return text + "".join(f"; {place_in_words(place)}" for place in {r.on: None for r in self.variants if r.on})


def place_in_words(on: str) -> str:
    """Where kernels for cards were run, after a verdict."""
    return "in the emulator, not yet on a card" if on == EMULATOR else f"on {on}"


def repeat(command: str, variant: str, seed: int, level: str, case: str | None, on: str = "") -> str:
    """The whole of a command that repeats a check; ``command`` is what comes before the variant's name, ``on`` where
    it ran."""
    text = f"{command} {variant} --seed {seed}" + (f" --case {case}" if case else " --full" if level == "full" else "")
    return text + (f" --on {EMULATOR}" if on == EMULATOR else "")


def table(report: CheckReport) -> str:
    """The report as a table of plain text, then what failed and how to repeat it, then the summary."""
    rows = [("variant", "verdict", "cases", "error/allowed", "worst in", "mutants", "seconds")]
    for entry in report.variants:
        worst = max(entry.worst, key=lambda name: entry.worst[name], default="")
        cases = str(len(entry.cases)) + (f" of {len(entry.cases) + len(entry.skipped)}" if entry.skipped else "")
        rows.append(
            (
                entry.variant,
                entry.verdict + (" (cached)" if entry.variant in report.cached else ""),
                cases,
                f"{entry.ratio:.2f}",
                worst,
                f"{entry.killed}/{entry.mutants}",
                f"{entry.seconds:.1f}",
            )
        )
    lines = _columns(rows)
    for entry in report.variants:
        lines += explain(entry)
    notes: dict[str, list[str]] = {}
    for entry in report.variants:
        for note in entry.notes:
            notes.setdefault(note, []).append(entry.variant)
    for note, names in notes.items():
        lines += ["", note + (f" ({', '.join(names)})" if len(names) < len(report.variants) else "")]
    return "\n".join([*lines, "", report.summary()])


def explain(report: VariantReport, most: int = 3) -> list[str]:
    """What is wrong with a variant that did not pass, as lines; none for one that did."""
    if report.verdict == PASSED:
        return []
    lines = ["", f"{report.variant}: {report.verdict}"]
    lines += [f"  {failure}" for failure in report.failures[:most]]
    if len(report.failures) > most:
        lines.append(f"  and {len(report.failures) - most} more cases")
    if report.skipped:
        lines.append(f"  no time for: {', '.join(report.skipped)}")
    lines += [f"  not told apart from its own expression: {survivor}" for survivor in report.survivors]
    lines += [f"  no case runs {line}" for line in report.unrun]
    lines.append(f"  repeat: {report.command}")
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value


def _failure(data: Mapping[str, Any]) -> Failure:
    values = dict(data)
    values["index"] = tuple(values["index"])
    for key in ("got", "want", "allowed", "ratio"):
        values[key] = float(values[key])
    return Failure(**values)
