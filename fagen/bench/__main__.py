"""`python3 -m fagen.bench FOLDER`: `fagen bench` where there is a module and torch, and nothing else of fagen's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..errors import FagenError
from .command import manifest_in, measure, wish
from .texts import ROUNDS, TEXTS


def main(arguments: list[str] | None = None) -> int:
    """What to exit with, as of `fagen bench`."""
    parser = argparse.ArgumentParser(
        prog="python3 -m fagen.bench",
        description="Measure a published module beside torch's own attention, in one run. Needs torch alone.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="A published module, as generated/a100.")
    parser.add_argument("--variant", "-v", action="append", default=[], help="Only this one; may be repeated.")
    parser.add_argument("--size", action="append", default=[], help=TEXTS["size"])
    parser.add_argument("--tokens", type=int, help=TEXTS["tokens"])
    parser.add_argument("--length", type=int, action="append", default=[], help=TEXTS["length"])
    parser.add_argument("--grid", action="append", default=[], help=TEXTS["grid"])
    parser.add_argument("--sustained", type=float, metavar="SECONDS", help=TEXTS["sustained"])
    parser.add_argument("--graph", action="store_true", help=TEXTS["graph"])
    parser.add_argument("--memory", action="store_true", help=TEXTS["memory"])
    parser.add_argument("--host", action="store_true", help=TEXTS["host"])
    parser.add_argument(
        "--schedules", type=Path, action="append", default=[], metavar="FOLDER", help=TEXTS["schedules"]
    )
    parser.add_argument("--forward-only", action="store_true", help=TEXTS["forward_only"])
    parser.add_argument("--backward-only", action="store_true", help=TEXTS["backward_only"])
    parser.add_argument("--flex", action="store_true", help=TEXTS["flex"])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=TEXTS["rounds"])
    parser.add_argument("--write", type=Path, help=TEXTS["write"])
    parser.add_argument("--plot", type=Path, help=TEXTS["plot"])
    parser.add_argument("--at-least", action="append", default=[], help=TEXTS["at_least"])
    parser.add_argument("--json", action="store_true", help=TEXTS["json"])
    options = parser.parse_args(arguments)
    try:
        wanted = wish(
            variants=options.variant,
            sizes=options.size,
            tokens=options.tokens,
            lengths=options.length,
            grids=options.grid,
            sustained=options.sustained,
            graph=options.graph,
            host=options.host,
            memory=options.memory,
            schedules=options.schedules,
            at_least=options.at_least,
            forward=not options.backward_only,
            backward=not options.forward_only,
            flex=options.flex,
            rounds=options.rounds,
            write=options.write,
            plot=options.plot,
            as_json=options.json,
        )
        return measure(options.folder, manifest_in(options.folder), wanted)
    except FagenError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
