"""Lines of rendered kernels that no case runs: counted in a copy of a module that is built for that, and thrown away.

The copy's kernels are compiled once more, unoptimised and counting lines; its cases run in worker processes as any
check's do, and gcov says what the counts mean.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import FagenError
from ..plan import Plan, plan_from_json
from ..render import source_name
from ..render_module import LINK_FLAGS
from ..runtime.check.drive import Wish, check_variants
from ..runtime.check.report import FAILED, Unrun, VariantReport
from ..toolchain import Compiler, find_compiler, find_gcov, find_ninja, find_torch
from .cache import Cache, locate_cache
from .compile import Unit, compile_units, object_of
from .keys import Headers, object_key, read_headers
from .link import link_library
from .progress import Progress
from .published import write_manifest
from .units import host_unit

_FLAGS = ("-O0", "--coverage")  # optimised code has no counts for lines that it merged
_SLOWER = 20.0  # than optimised code, at most
_GCOV_SECONDS = 120.0


@dataclass(frozen=True)
class Lines:
    """Of one variant's sources: how many lines can run, and which of them never did. ``note`` says why there is no
    count, if there is none."""

    total: int = 0
    unrun: tuple[Unrun, ...] = ()
    note: str = ""


def count_lines(
    folder: Path, names: Sequence[str], *, seed: int, cache: Cache | None, progress: Progress
) -> dict[str, Lines]:
    """What the cases of level "auto" leave unrun in the variants ``names`` of the module in ``folder``.

    The module is built again from its own sources, in a private folder. Where that cannot be, the notes say why.
    """
    with tempfile.TemporaryDirectory(prefix="fagen-lines-") as private:
        try:
            copy = _Copy(folder, Path(private), names, cache or locate_cache())
            copy.build(progress)
        except FagenError as error:
            return dict.fromkeys(names, _not_counted(error.problems[0].message))
        progress.stage("lines", len(names))
        reports = check_variants(
            copy.folder, names, Wish(seed), counts=copy.counts, hang=60.0 * _SLOWER, watcher=progress
        )
        return {report.variant: copy.lines(report) for report in reports}


def _not_counted(why: str) -> Lines:
    return Lines(note=f"lines not counted: {why}")


class _Copy:
    """A module's copy below ``private``, its variants ``names`` counting lines. Raises what building does."""

    def __init__(self, folder: Path, private: Path, names: Sequence[str], cache: Cache):
        self.original, self.private, self.cache = folder, private, cache
        self.compiler, self.ninja, self.torch = find_compiler(), find_ninja(), find_torch()
        self.gcov = find_gcov(self.compiler)
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.folder, self.work, self.counts = private / self.manifest["name"], private / "work", private / "counts"
        headers = read_headers(folder / "sources" / "include")
        self.headers = headers
        plans = [plan_from_json(entry["plan"]) for entry in self.manifest["variants"]]
        self.kernels = {
            plan.variant.name: [
                _unit(folder, plan, direction, headers, self.compiler, counting=plan.variant.name in names)
                for direction in plan.directions
            ]
            for plan in plans
        }

    def build(self, progress: Progress) -> None:
        """Compile what the cache lacks, and link it."""
        sources = self.original / "sources"
        host = host_unit((sources / "binding.cpp").read_text(encoding="utf-8"), self.headers, self.compiler, self.torch)
        units = [host, *(unit for group in self.kernels.values() for unit in group)]
        work = self.work
        work.mkdir()
        compile_units(
            units,
            headers=self.headers,
            compiler=self.compiler,
            ninja=self.ninja,
            cache=self.cache,
            work=work,
            failed=self.private / "failed",
            jobs=None,
            progress=progress,
        )
        library = self.manifest["library"]
        shutil.copytree(self.original, self.folder, ignore=shutil.ignore_patterns(library, "sources", "__pycache__"))
        inputs = [sources / "name.cpp", *(object_of(unit, work) for unit in units)]
        flags = (f"-L{self.torch.library_dir}", *LINK_FLAGS, "--coverage")
        link_library(self.folder / library, inputs, flags, self.compiler, self.private / "failed")
        write_manifest(self.folder, self.manifest)
        self.counts.mkdir()

    def lines(self, report: VariantReport) -> Lines:
        """Of one variant, ``report`` being what its counting kernels were found to compute."""
        if report.verdict == FAILED:
            # Right when optimised, wrong when not: whatever it is, the counts mean nothing.
            return _not_counted(f"compiled with {_FLAGS[0]}, {report.failures[0]}")
        total, unrun = 0, list[Unrun]()
        for unit in self.kernels[report.variant]:
            counts = self._counts(unit)
            if not counts:
                return _not_counted(f"{' '.join(self.gcov)} finds none of {unit.file}")
            total += len(counts)
            text = unit.text.splitlines()
            unrun += [Unrun(unit.file, n, text[n - 1].strip()) for n in sorted(counts) if counts[n] == 0]
        return Lines(total, tuple(unrun))

    def _counts(self, unit: Unit) -> dict[int, int]:
        """How often each line of a rendered source ran, by line number. Empty if that cannot be said."""
        notes = self.counts / f"{unit.key}.gcno"
        if not notes.with_suffix(".gcda").exists():  # gcov would take it for a program that never ran
            return {}
        shutil.copyfile(object_of(unit, self.work).with_suffix(".gcno"), notes)
        (self.counts / unit.file).write_text(unit.text, encoding="utf-8")  # llvm-cov prints it
        command = [*self.gcov, *_FORMATS[self.compiler.kind], notes.name]
        try:
            done = subprocess.run(
                command, cwd=self.counts, capture_output=True, text=True, errors="replace", check=True,
                timeout=_GCOV_SECONDS,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return {}
        found = dict[int, int]()
        for number, count in _PARSERS[self.compiler.kind](done.stdout, unit.file):
            # A template's line is there once for each of its instances.
            found[number] = max(found.get(number, 0), count)
        return found


def _unit(folder: Path, plan: Plan, direction: str, headers: Headers, compiler: Compiler, *, counting: bool) -> Unit:
    file = source_name(plan.variant.name, direction)
    text = (folder / "sources" / file).read_text(encoding="utf-8")
    flags = (*plan.flags_of(direction), *(_FLAGS if counting else ()))
    key = object_key(text, flags, headers, compiler=compiler.identity)
    return Unit(
        file,
        f"{plan.variant.name} {direction}" + ", counting" * counting,
        text,
        flags,
        key,
        beside=(".gcno",) * counting,
    )


def _from_json(output: str, file: str) -> Iterator[tuple[int, int]]:
    """Of gcov's JSON, (line, count) of one file."""
    for line in output.splitlines():
        try:
            entry: Mapping[str, Any] = json.loads(line)
        except ValueError:
            continue
        for source in entry["files"]:
            if Path(source["file"]).name == file:
                yield from ((found["line_number"], found["count"]) for found in source["lines"])


def _from_text(output: str, file: str) -> Iterator[tuple[int, int]]:
    """The same of what llvm-cov prints: ``COUNT: LINE:TEXT``, ``#####`` for 0, for each source that it names."""
    wanted = False
    for line in output.splitlines():
        match = re.match(r" *(-|#+|=+|\d+)\*?: *(\d+):(.*)", line)
        if match is None:
            continue
        if match[2] == "0":
            if match[3].startswith("Source:"):
                wanted = Path(match[3].removeprefix("Source:")).name == file
        elif wanted and match[1] != "-":
            yield int(match[2]), int(match[1]) if match[1].isdigit() else 0


_FORMATS = {"gcc": ("--json-format", "--stdout"), "clang": ("-t",)}
_PARSERS = {"gcc": _from_json, "clang": _from_text}
