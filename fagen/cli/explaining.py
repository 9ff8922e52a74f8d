"""`fagen explain`: find the variant, then let the compiler account for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ..build.cuda import resources_from_json
from ..build.failure import shown_path
from ..build.planning import plan_spec
from ..build.published import MANIFEST, read_manifest, warnings
from ..errors import PlanError, Problem, SpecError
from ..explain import explain
from ..plan import Plan, plan_from_json
from ..resources import specs_dir
from ..size import parse_size
from ..spec import expand, load
from .listing import names_spec
from .output import print_json


def explain_variant(name: str, spec: Path | None, size: str, out: Path, *, as_json: bool) -> None:
    """Print what :func:`fagen.explain.explain` says of the variant ``name`` at a size."""
    plan, compiled = _find(name, spec, out)
    resources = {kernel: str(taken) for kernel, taken in resources_from_json(compiled.get("resources", {})).items()}
    explanation = explain(plan, parse_size(size), resources, warnings([compiled]))
    if as_json:
        print_json(explanation.to_json())
    else:
        typer.echo(explanation.text())


def _find(name: str, spec: Path | None, out: Path) -> tuple[Plan, Mapping[str, Any]]:
    """The variant's plan, and its entry in a manifest if it was compiled.

    From ``spec`` if given, else from the first module in ``out`` (or the one that it is) or ready spec that has it,
    those for the CPU before those for cards. A ready spec whose target cannot be planned yet gives way to one whose
    target can.
    """
    if not name.isidentifier() and names_spec(name):
        raise _no_variant(name, "a spec", [variant.name for variant in expand(load(name))], f" --spec {name}")
    places: list[str] = []
    refusal: PlanError | None = None
    published = {
        path.parent: read_manifest(path.parent) for path in sorted([*out.glob(MANIFEST), *out.glob(f"*/{MANIFEST}")])
    }
    modules = [(folder, manifest) for folder, manifest in published.items() if manifest is not None]
    for folder, manifest in sorted(modules, key=lambda each: each[1]["target"] != "cpu") if spec is None else []:
        for entry in manifest["variants"]:
            if entry["variant"]["name"] == name:
                return plan_from_json(entry["plan"]), entry
        places.append(str(shown_path(folder.absolute())))
    specs = [(path, load(path)) for path in ([spec] if spec is not None else sorted(specs_dir().rglob("*.yaml")))]
    for path, loaded in sorted(specs, key=lambda each: "cpu" not in each[1].targets):
        for variant in expand(loaded):
            if variant.name == name:
                try:
                    found = plan_spec(loaded, [variant])[0]
                    return found, _compiled(found, published.get(out / loaded.name))
                except PlanError as error:
                    refusal = refusal or error
        places.append(str(shown_path(path.absolute())))
    if refusal is not None:
        raise refusal
    for folder in (Path(name), out / name):
        if (module := read_manifest(folder)) is not None:
            names = [entry["variant"]["name"] for entry in module["variants"]]
            raise _no_variant(name, "a module", names, f" --out {folder}")
    raise SpecError(
        Problem(f"no variant {name} in {', '.join(places)}", hint="`fagen list SPEC` lists them, --spec names one")
    )


def _compiled(plan: Plan, manifest: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The entry of a plan in the manifest of its spec's published module, if that has just this plan."""
    for entry in (manifest or {"variants": []})["variants"]:
        if plan_from_json(entry["plan"]) == plan:
            return entry
    return {}


def _no_variant(name: str, what: str, variants: Sequence[str], more: str) -> SpecError:
    """For a spec or a module where one of its variants is wanted."""
    others = f"; it has {', '.join(variants)}" if len(variants) > 1 else ""
    hint = f"`fagen explain {variants[0]}{more}`{others}"
    return SpecError(Problem(f"is {what}; this wants one of its variants", name, hint=hint))
