"""`fagen tune`: candidates compiled, measured, and the fastest written where the planner finds them."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ..build.failure import shown_path
from ..build.planning import read_spec_tuning
from ..errors import LockError, Problem, UsageError
from ..plan.tuned import PLAN_VERSION, tiles_in_words
from ..runtime.cards import cards
from ..runtime.variant import Tiles
from ..spec import Spec, load
from ..spec.tuning import TuningEntry, TuningFile, tuning_text
from ..tune.folder import Sweep, read_sweep
from .output import print_json, progress_for_terminal


@dataclass(frozen=True)
class Steps:
    """Which of the steps to take, and how: both, if nothing is said. See the command's options."""

    variants: Sequence[str]
    folder: Path | None
    compile_only: bool
    measure: Path | None
    read: Path | None
    results: Path | None
    budget: float | None
    most: int | None
    jobs: int | None
    sizes: Sequence[str]
    lengths: Sequence[int]
    rounds: int
    as_json: bool


def tune_spec(spec_path: Path, out: Path, steps: Steps) -> None:
    """Take the steps, and print what came of them."""
    if sum((steps.compile_only, steps.measure is not None, steps.read is not None)) > 1:
        raise UsageError(
            Problem("--compile-only, --measure and --read are steps of their own", hint="give one of them")
        )
    spec = load(spec_path)  # one that is wrong is told of before anything is done
    folder = steps.measure or steps.folder or out / ".fagen" / "tune" / spec.name
    if steps.measure is not None and read_sweep(steps.measure).spec != spec.name:
        raise UsageError(Problem(f"--measure: the candidates in {steps.measure} are of another spec than {spec_path}"))
    if steps.measure is None and steps.read is None:
        if not steps.compile_only:
            _require_card(spec)
        sweep = _compile(spec_path, folder, steps)
        if steps.compile_only:
            _say_compiled(sweep, folder, steps)
            return
    _write(spec_path, _winning(folder, steps), steps)


def _require_card(spec: Spec) -> None:
    """Before an hour of compiling."""
    for target in spec.targets:
        if target not in ("cpu", "native") and not any(card.runs(target) for card in cards()):
            message = f"{spec.path} is for {target}, and no card here runs that"
            raise UsageError(Problem(message, hint="compile here with --compile-only, and measure where the card is"))


def _compile(spec_path: Path, folder: Path, steps: Steps) -> Sweep:
    from ..tune.sweep import compile_sweep

    return compile_sweep(
        spec_path,
        folder,
        names=steps.variants,
        most=steps.most,
        budget=steps.budget,
        jobs=steps.jobs,
        progress=progress_for_terminal,
        tell=_tell,
    )


def _say_compiled(sweep: Sweep, folder: Path, steps: Steps) -> None:
    if steps.as_json:
        counts = [
            {
                "variant": each.variant,
                "direction": each.direction,
                "compiled": len(each.candidates),
                "pruned": each.pruned,
                "waiting": each.waiting,
            }
            for each in sweep.variants
        ]
        print_json({"ok": True, "folder": str(folder), "variants": counts})
        return
    for each in sweep.variants:
        waiting = f", {each.waiting} not yet" if each.waiting else ""
        typer.echo(f"{each.label}: {len(each.candidates)} candidates compiled{waiting}, {len(each.pruned)} pruned")
    if any(each.waiting for each in sweep.variants):
        _tell("the budget was over before all were compiled; the same command goes on from there")
    typer.echo(
        f"why the others are pruned is in {shown_path(folder)}/sweep.json; where the card is, with fagen/ beside:"
    )
    typer.echo(f"  python3 -m fagen.tune {shlex.quote(str(shown_path(folder)))}")


def _winning(folder: Path, steps: Steps) -> list[TuningEntry]:
    """The fastest of each variant, measured here or read."""
    from ..tune.command import measure, options
    from ..tune.results import Results
    from ..tune.winners import winners

    if steps.read is not None:
        if not steps.read.is_file():
            raise UsageError(Problem(f"--read: there is no file {steps.read}", hint="python3 -m fagen.tune writes it"))
        kept = Results(steps.read)
        if kept.damaged:
            _tell(f"{steps.read}: {kept.damaged} lines cannot be read, and are left aside")
        found = winners(kept)
    else:
        wanted = options(steps.variants, steps.sizes, steps.lengths, steps.rounds)
        echo = _tell if steps.as_json else typer.echo
        found = measure(folder, steps.results, wanted, steps.budget, echo, _tell)
    old = [each.label for each in found if each.version != PLAN_VERSION]
    if old:
        _tell(f"left aside, for they were measured for another version of the planner: {', '.join(old)}")
    return [
        TuningEntry(
            variant=each.variant,
            shape=each.shape,
            target=each.target,
            tiles=Tiles(**each.tiles),  # type: ignore[arg-type]
            gain=1.0 if math.isnan(each.gain) else each.gain,
            tried=each.tried,
            card=each.card,
            date=each.date,
            milliseconds=each.milliseconds,
            direction=each.direction,
        )
        for each in found
        if each.version == PLAN_VERSION and (not steps.variants or each.variant in steps.variants)
    ]


def _write(spec_path: Path, found: Sequence[TuningEntry], steps: Steps) -> None:
    """Put them into the tuning file, in the places of those of the same shapes; the others in it stay."""
    before = read_spec_tuning(str(spec_path))
    if not found:
        if steps.as_json:
            print_json({"ok": True, "file": None, "entries": []})
        else:
            typer.echo(f"nothing to write: {shown_path(before.path)} is as it was")
        return
    if before.damaged:
        _put_aside(before)
    new = {(each.shape, each.target, each.direction): each for each in (*before.entries, *found)}
    again = f"fagen tune {spec_path.name}"
    aside = before.path.with_name(f".{before.path.name}")
    try:
        aside.write_text(tuning_text(list(new.values()), PLAN_VERSION, again), encoding="utf-8")
        aside.replace(before.path)
    except OSError as error:
        raise LockError(Problem(f"{before.path} cannot be written: {error.strerror}")) from None
    if steps.as_json:
        entries = [{**vars(each), "tiles": tiles_in_words(each.tiles)} for each in found]
        print_json({"ok": True, "file": str(before.path), "entries": entries})
    else:
        names = len({each.variant for each in found})
        count = f"{names} variant" + "s" * (names != 1)
        typer.echo(f"wrote {shown_path(before.path)}: {count}; `fagen build {spec_path}` takes the tiles from there")


def _put_aside(before: TuningFile) -> None:
    """A file that cannot be read whole is kept: somebody may have edited it."""
    kept = before.path.with_name(before.path.name + ".damaged")
    number = 1
    while kept.exists():
        number += 1
        kept = before.path.with_name(f"{before.path.name}.damaged{number}")
    before.path.rename(kept)
    for problem in before.problems:
        _tell(str(problem))
    _tell(f"what could not be read is kept in {kept.name}")


def _tell(line: str) -> None:
    typer.echo(line, err=True)
