"""From a module's folder to figures on the screen, in files and as an exit code. No typer here: `fagen bench` and
`python3 -m fagen.bench` both end in this, and the second has to run where there is nothing but torch."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import FagenError, Problem, SpecError, UsageError
from ..size import parse_size
from .grids import GRIDS
from .machines import find_card
from .measure import How
from .peers import BACKENDS
from .plot import draw
from .report import DETERMINISTIC, FASTEST, BenchReport
from .run import Options, bench, memory
from .tables import summary, table, tables

_COMPARED = ("sdpa", *BACKENDS, "flex", FASTEST, DETERMINISTIC)  # what a limit may be of


@dataclass(frozen=True)
class Wish:
    """What to measure, and what to make of it: ``limits`` as BenchReport.short_of takes them."""

    options: Options = Options()
    limits: Mapping[str, float] = field(default_factory=dict)
    write: Path | None = None
    plot: Path | None = None
    as_json: bool = False
    schedules: Sequence[Path] = ()


def wish(
    *,
    variants: Sequence[str],
    sizes: Sequence[str],
    tokens: int | None,
    lengths: Sequence[int],
    grids: Sequence[str],
    sustained: float | None,
    graph: bool,
    host: bool,
    memory: bool,
    schedules: Sequence[Path],
    at_least: Sequence[str],
    forward: bool,
    backward: bool,
    flex: bool,
    rounds: int,
    write: Path | None,
    plot: Path | None,
    as_json: bool,
) -> Wish:
    """What a command line asks for. Raises UsageError for what cannot be meant."""
    if rounds < 3:
        raise UsageError(Problem(f"--rounds: {rounds} are too few", hint="at least 3"))
    if tokens is not None and tokens < 1:
        raise UsageError(Problem(f"--tokens: expected a positive number, got {tokens}"))
    if sustained is not None and not 0 < sustained < math.inf:
        raise UsageError(Problem(f"--sustained: expected seconds, got {sustained}", hint="such as 0.25"))
    if not (forward or backward):
        raise UsageError(Problem("--forward-only and --backward-only leave nothing", hint="leave out one of them"))
    if not forward and (graph or host or schedules):
        raise UsageError(Problem("--backward-only: graphs, the host's time and schedules are of the forward pass"))
    if memory and (
        grids or graph or host or sustained is not None or schedules or at_least or flex or plot or not forward
    ):
        raise UsageError(Problem("--memory is measured alone", hint="beside it are -v, --size, --length and --write"))
    if host and (graph or sustained is not None):
        raise UsageError(Problem("--host is measured alone", hint="leave out --graph and --sustained, or run twice"))
    for name in grids:
        if name not in GRIDS:
            raise UsageError(Problem(f"--grid: no grid {name}", hint=f"there are {', '.join(GRIDS)}"))
    if grids and (sizes or tokens is not None):
        raise UsageError(Problem("--grid has sizes of its own", hint="leave out --size and --tokens"))
    options = Options(
        sizes=tuple(parse_size(text) for text in sizes),
        tokens=tokens,
        lengths=tuple(lengths),
        grids=tuple(grids),
        variants=tuple(variants),
        how=How(sustained, graph, host),
        forward=forward,
        backward=backward,
        flex=flex,
        rounds=rounds,
        memory=memory,
    )
    return Wish(options, dict(_limit(text) for text in at_least), write, plot, as_json, tuple(schedules))


def _limit(text: str) -> tuple[str, float]:
    """`forward=1.5` as ("forward", 1.5), `cell/fastest=1` as ("cell/fastest", 1.0)."""
    asked, _, number = text.partition("=")
    what, slash, peer = asked.partition("/")
    try:
        known = what in ("forward", "backward", "cell") and (peer in _COMPARED if slash else not peer)
        if known and math.isfinite(limit := float(number)):
            return asked, limit
    except ValueError:
        pass
    raise UsageError(
        Problem(
            f"--at-least: {text!r}: expected forward=, backward= or cell= and a ratio",
            hint=f"write it as forward=1.5, or as forward/cudnn=1.5; there are {', '.join(_COMPARED)}",
        )
    )


def manifest_in(folder: Path) -> dict[str, Any]:
    """That of a published module. Raises SpecError if ``folder`` holds none."""
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest, dict) and "fagen" in manifest:
            return manifest
    except (OSError, ValueError):
        pass
    raise SpecError(Problem(f"{folder} is no published module", hint="name a folder that `fagen build` made"))


def measure(folder: Path, manifest: Mapping[str, Any], wish: Wish, out: Callable[[str], None] = print) -> int:
    """Measure the module in ``folder``, print, write and draw what came out, and return what to exit with.

    1 if a ratio of ``wish.limits`` is not reached, or a cell failed. Raises FagenError, before anything is measured if
    it can.
    """
    known = [entry["variant"]["name"] for entry in manifest["variants"]]
    for name in wish.options.variants:
        if name not in known:
            raise UsageError(Problem(f"--variant: no variant {name}", hint=f"there are {', '.join(known)}"))
    for place, each in ((folder, manifest), *((place, manifest_in(place)) for place in wish.schedules)):
        if each.get("device", "cpu") != "cpu":
            find_card(place.name, each["target"])  # before a library is loaded
    if wish.options.memory:
        return _measure_memory(folder, wish, out)
    others = [import_module(place)._module for place in wish.schedules]
    write = wish.write
    keep = (lambda report: None) if write is None else (lambda report: report.write_json(write))
    report = bench(import_module(folder)._module, wish.options, _tell, others=others, keep=keep)
    if wish.plot is not None:
        draw(report, wish.plot)
    short = [*report.failed, *report.short_of(wish.limits)]
    for line in short:
        _tell(f"error: {line}")
    out(_text(report, wish, short))
    return FagenError.exit_code if short else 0


def _measure_memory(folder: Path, wish: Wish, out: Callable[[str], None]) -> int:
    report = memory(import_module(folder)._module, wish.options, _tell)
    if wish.write is not None:
        report.write_json(wish.write)
    for line in report.failed:
        _tell(f"error: {line}")
    if wish.as_json:
        out(json.dumps(report.to_json(), indent=2, ensure_ascii=False))
    else:
        out("\n".join([table(report.rows()) + "\n", *report.summary()]))
    return FagenError.exit_code if report.failed else 0


def _text(report: BenchReport, wish: Wish, short: Sequence[str]) -> str:
    if wish.as_json:
        return json.dumps({**report.to_json(), "short_of": list(short)}, indent=2, ensure_ascii=False)
    return "\n".join([*(table(rows) + "\n" for rows in tables(report)), *summary(report, wish.limits)])


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def import_module(folder: Path) -> ModuleType:
    """The published module in ``folder``, imported wherever it lies, under a name that no other package has."""
    name = f"_fagen_benched_{folder.resolve().name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
