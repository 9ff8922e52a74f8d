"""`fagen list`: modules, ready specs, and the variants of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from ..build.failure import shown_path
from ..build.published import read_manifest
from ..errors import Problem, SpecError
from ..resources import specs_dir
from ..runtime.check.where import EMULATOR
from .output import print_json, print_table

_COLUMNS = ("variant", "head dim", "dtype", "layout", "backward", "mask", "score")


def list_all(out: Path, *, as_json: bool) -> None:
    """Every module published in ``out``, and the specs that come with fagen."""
    modules = []
    for path in sorted(out.glob("*/manifest.json")):
        manifest = read_manifest(path.parent)
        if manifest is not None:
            modules.append({"folder": str(shown_path(path.parent)), **_summary(manifest)})
    specs = [str(shown_path(path)) for path in sorted(specs_dir().rglob("*.yaml"))]
    if as_json:
        print_json({"modules": modules, "specs": specs})
        return
    if modules:
        rows = [[str(module[key]) for key in ("folder", "spec", "variants", "isa", "check")] for module in modules]
        print_table(("module", "spec", "variants", "isa", "check"), rows)
    else:
        typer.echo(f"no module is published in {shown_path(out.absolute())}")
    typer.echo("\nready specs, for `fagen build`:")
    for spec in specs:
        typer.echo(f"  {spec}")


def list_one(what: str, out: Path, *, as_json: bool) -> None:
    """The variants of a spec file, or of a published module (its folder, or its name in ``out``)."""
    if names_spec(what):
        from ..spec import expand, load

        spec = load(what)
        rows = [variant.to_json() for variant in expand(spec)]
        skipped = [{"name": name, "waits_for": list(keys)} for name, keys in spec.skipped]
    else:
        rows = [entry["variant"] for entry in read_module(find_module(what, out))["variants"]]
        skipped = []
    if as_json:
        print_json({"variants": rows, "skipped": skipped})
        return
    print_table(_COLUMNS, [_row(row) for row in rows])
    for entry in skipped:
        typer.echo(f"{entry['name']} waits for {', '.join(entry['waits_for'])}")


def names_spec(what: str) -> bool:
    """Whether an argument is a spec's path, be the file there or not: no module and no variant has such a name."""
    return what.endswith((".yaml", ".yml")) or Path(what).is_file()


def find_module(what: str, out: Path) -> Path:
    """The folder of a published module, given as a folder or as a name in ``out``. Raises :class:`SpecError`."""
    for folder in (Path(what), out / what):
        if (folder / "manifest.json").is_file():
            return folder
    if names_spec(what):
        raise SpecError(Problem("is a spec; this wants the module that it makes", what, hint=_module_of(what, out)))
    names = sorted(path.parent.name for path in out.glob("*/manifest.json"))
    there = f"there are {', '.join(names)}" if names else "there is none: `fagen build SPEC` makes one"
    elsewhere = "one that lies elsewhere goes by its folder, as ~/kernels/my_model, or by its name and --out"
    raise SpecError(Problem(f"no module {what} in {shown_path(out.absolute())}", hint=f"{there}; {elsewhere}"))


def _module_of(path: str, out: Path) -> str:
    """Where the module of a spec is, or how to make it. Raises :class:`SpecError` for a spec that makes none."""
    from ..spec import load

    name = load(path).name
    if (out / name / "manifest.json").is_file():
        return f"name {name}" + ("" if out == Path("generated") else f", with --out {out}")
    return f"`fagen build {path}` makes {name}"


def read_module(folder: Path) -> dict[str, Any]:
    """The manifest of a published module. Raises :class:`SpecError` if it is damaged."""
    manifest = read_manifest(folder)
    if manifest is None:
        raise SpecError(
            Problem(
                "is no manifest of fagen's",
                path=str(folder / "manifest.json"),
                hint="delete the folder and build it again",
            )
        )
    return manifest


def _summary(manifest: Mapping[str, Any]) -> dict[str, Any]:
    check = manifest.get("check") or {}
    return {
        "spec": manifest["spec"]["file"],
        "variants": len(manifest["variants"]),
        "isa": manifest["isa"]["name"] or manifest["target"],
        "check": check.get("verdict", "not checked") + (" (emulated)" if check.get("on") == EMULATOR else ""),
    }


def _row(variant: Mapping[str, Any]) -> list[str]:
    dims = [str(variant["head_dim"])] + [str(variant["value_dim"])] * (variant["value_dim"] != variant["head_dim"])
    texts = [variant[key]["text"] if variant[key] else "-" for key in ("mask", "score")]
    backward = "yes" if variant["backward"] else "no"
    return [variant["name"], "/".join(dims), variant["dtype"], variant["layout"], backward, *texts]
