"""`python -m <module> check`: the module's own check of itself, where there is no fagen."""

from __future__ import annotations

import importlib.util
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .drive import Wish, check_variants
from .report import FAILED, CheckReport, table
from .where import find_where

WRONG = 6  # the exit code of a wrong number, as fagen's own


def check_module(
    folder: Path,
    names: Sequence[str],
    *,
    command: str,
    seed: int | None = None,
    case: str | None = None,
    on: str | None = None,
    full: bool = False,
    as_json: bool = False,
) -> int:
    """Check ``names``, variants of the module in ``folder``, print what was found, and return what to exit with.

    ``seed`` None draws a new one; ``case`` runs that case alone; ``full`` runs all there are; ``on`` says where kernels
    for cards run. ``command`` begins what repeats a check, up to the variant's name. Raises LookupError where ``on``
    cannot be had.
    """
    import torch

    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    fagen = importlib.util.find_spec("fagen")
    root = None if fagen is None or fagen.origin is None else str(Path(fagen.origin).parents[1])
    where = find_where(manifest.get("target", "cpu"), on, cuda=torch.version.cuda is not None, emulator=root)
    begun = time.monotonic()
    seed = secrets.randbelow(2**31) if seed is None else seed
    level = "full" if full else "auto"
    reports = check_variants(folder, names, Wish(seed, level, case, command, where), watcher=_Lines())
    report = CheckReport(tuple(reports), seed, level, time.monotonic() - begun)
    print(json.dumps(report.to_json(), indent=2) if as_json else table(report))
    return WRONG if report.verdict == FAILED else 0


class _Lines:
    """Says on stderr what is being checked."""

    def start(self, step: str) -> None:
        """Nothing: the line comes when it has ended."""

    def finish(self, step: str, detail: str) -> None:
        """As ``checked causal_d64: passed, 0.9 s``."""
        print(f"checked {step}: {detail}", file=sys.stderr, flush=True)
