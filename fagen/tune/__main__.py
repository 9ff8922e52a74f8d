"""`python3 -m fagen.tune FOLDER`: measures candidates where there is a card and torch, and nothing else of fagen's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..bench.texts import ROUNDS
from ..bench.texts import TEXTS as BENCH_TEXTS
from ..errors import FagenError
from .command import TEXTS, measure, options


def main(arguments: list[str] | None = None) -> int:
    """What to exit with: 0 also where the budget was over before all was measured."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fagen.tune",
        description="Check and measure the candidates that `fagen tune --compile-only` made. Needs torch alone. "
        "`fagen tune SPEC --read RESULTS` then writes the tuning file, where the spec is.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="What `fagen tune SPEC --compile-only` made.")
    parser.add_argument("--variant", "-v", action="append", default=[], help="Only this one; may be repeated.")
    parser.add_argument("--results", type=Path, help=TEXTS["results"])
    parser.add_argument("--budget", type=float, help=TEXTS["budget"])
    parser.add_argument("--size", action="append", default=[], help=BENCH_TEXTS["size"])
    parser.add_argument("--length", type=int, action="append", default=[], help=TEXTS["length"])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=BENCH_TEXTS["rounds"])
    given = parser.parse_args(arguments)
    try:
        wanted = options(given.variant, given.size, given.length, given.rounds)
        measure(given.folder, given.results, wanted, given.budget)
    except FagenError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
