"""`fagen explain`: find the variant, then let the compiler account for it."""

from __future__ import annotations

from pathlib import Path

import typer

from ..build.cuda import Resources, resources_from_json
from ..build.failure import shown_path
from ..build.planning import plan_spec
from ..build.published import read_manifest
from ..errors import PlanError, Problem, SpecError
from ..explain import explain
from ..plan import Plan, plan_from_json
from ..resources import specs_dir
from ..size import parse_size
from ..spec import expand, load
from .output import print_json


def explain_variant(name: str, spec: Path | None, size: str, out: Path, *, as_json: bool) -> None:
    """Print what :func:`fagen.explain.explain` says of the variant ``name`` at a size."""
    plan, resources = _find(name, spec, out)
    explanation = explain(plan, parse_size(size), {kernel: str(taken) for kernel, taken in resources.items()})
    if as_json:
        print_json(explanation.to_json())
    else:
        typer.echo(explanation.text())


def _find(name: str, spec: Path | None, out: Path) -> tuple[Plan, dict[str, Resources]]:
    """The variant's plan, and what its kernels take if they were compiled.

    From ``spec`` if given, else from the first published module or ready spec that has it, those for the CPU before
    those for cards. A ready spec whose target cannot be planned yet gives way to one whose target can.
    """
    places: list[str] = []
    refusal: PlanError | None = None
    for path in sorted(out.glob("*/manifest.json")) if spec is None else []:
        for entry in (read_manifest(path.parent) or {"variants": []})["variants"]:
            if entry["variant"]["name"] == name:
                return plan_from_json(entry["plan"]), resources_from_json(entry.get("resources", {}))
        places.append(str(shown_path(path.parent.absolute())))
    specs = [(path, load(path)) for path in ([spec] if spec is not None else sorted(specs_dir().rglob("*.yaml")))]
    for path, loaded in sorted(specs, key=lambda each: "cpu" not in each[1].targets):
        for variant in expand(loaded):
            if variant.name == name:
                try:
                    return plan_spec(loaded, [variant])[0], {}
                except PlanError as error:
                    refusal = refusal or error
        places.append(str(shown_path(path.absolute())))
    if refusal is not None:
        raise refusal
    raise SpecError(
        Problem(f"no variant {name} in {', '.join(places)}", hint="`fagen list SPEC` lists them, --spec names one")
    )
