"""`python -m <module> list` and `python -m <module> check`."""

from __future__ import annotations

import argparse
import importlib
import json
from typing import Any

from .module import Module


def main(package: str, arguments: list[str] | None = None) -> int:
    """Run a command of the module that ``package`` names; what to exit with: 0 right, 6 a wrong number."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}", description="What this module holds, and whether it is right."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="print the variants")
    checking = commands.add_parser("check", help="check the variants against the float64 reference on this machine")
    checking.add_argument("names", nargs="*", metavar="VARIANT", help="which; all if none is named")
    checking.add_argument("--seed", type=int, help="of the inputs; a new one if not given")
    checking.add_argument("--case", help="only this case, as a failed check names it")
    checking.add_argument("--full", action="store_true", help="every case, however long it takes")
    checking.add_argument("--on", choices=("device", "emulator"), help="where kernels for cards run")
    for command in (listing, checking):
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
    options = parser.parse_args(arguments)
    module: Module = importlib.import_module(package)._module
    if options.command == "list":
        return _list(module, options.json)
    from .check.console import check_module

    try:
        names = [module.variant(name).name for name in options.names or module.kernels]
    except ValueError as error:
        parser.error(str(error))
    try:
        return check_module(
            module.folder,
            names,
            command=f"python -m {package} check",
            seed=options.seed,
            case=options.case,
            on=options.on,
            full=options.full,
            as_json=options.json,
        )
    except LookupError as error:
        parser.error(str(error))


def _list(module: Module, as_json: bool) -> int:
    rows: list[dict[str, Any]] = [variant.to_json() for variant in module.variants()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for variant in module.variants():
        parts = [f"{variant.name:<28}", f"d{variant.head_dim:<4}", f"{variant.dtype:<5}", variant.layout]
        parts += [f"{what}: {text.text}" for what, text in (("mask", variant.mask), ("score", variant.score)) if text]
        print(" ".join(parts))
    return 0
