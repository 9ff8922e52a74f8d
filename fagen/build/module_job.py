"""What a spec needs built: its units with their keys, and the files of its module."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..check import check_module
from ..errors import PlanError, Problem
from ..plan import Plan, plan
from ..render import Source, render
from ..render_module import HOST_FLAGS, LINK_FLAGS, render_module
from ..resources import templates_dir
from ..runtime.variant import Variant
from ..spec import Spec, expand, load
from ..target import ISAS, TARGETS
from ..toolchain import OLDEST_TORCH, Compiler, Torch
from .cache import Cache
from .compile import Unit
from .job import Job
from .keys import Headers, digest, object_key, read_headers
from .progress import Progress

_RUNTIME = Path(__file__).resolve().parents[1] / "runtime"
_HOST = "binding.cpp"


def make_job(path: Path, inputs: str | None, compiler: Compiler, torch: Torch, cache: Cache, check: str) -> Job:
    """The job that builds the spec at ``path``. Raises :class:`SpecError` or :class:`PlanError`.

    ``inputs`` is the digest that the manifest keeps, ``check`` the level of checking.
    """
    spec = load(path)
    variants = expand(spec)
    if not variants:
        raise PlanError(Problem("every variant waits for keys that are not built yet", path=spec.path))
    plans = plan_spec(spec, variants)
    headers = read_headers(templates_dir() / "include")
    kernels = {p.variant.name: [_kernel(source, headers, compiler) for source in render(p)] for p in plans}
    features = tuple(dict.fromkeys(feature for p in plans for feature in ISAS[p.isa].features))

    def module_files(namespace: str) -> dict[str, str]:
        return render_module(spec.name, variants, namespace=namespace, features=features, spec_file=path.name)

    # The namespace names this build and stands in the host unit, so the hash is taken of one without it.
    nameless = _host(module_files(f"fagen_{spec.name}")[_HOST], headers, compiler, torch)
    hash8 = digest([nameless.key, sorted(unit.key for group in kernels.values() for unit in group)])[:8]
    files = module_files(f"fagen_{spec.name}_{hash8}")
    units = [_host(files.pop(_HOST), headers, compiler, torch), *(unit for group in kernels.values() for unit in group)]
    library = f"library_{hash8}.so"

    def fill(folder: Path) -> None:
        _write_sources(folder / "sources", units, headers)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        shutil.copytree(_RUNTIME, folder / "runtime", ignore=shutil.ignore_patterns("__pycache__"))

    def run_check(folder: Path, progress: Progress) -> Mapping[str, Any]:
        return {} if check == "off" else check_module(folder, level=check, cache=cache, progress=progress)

    return Job(
        name=spec.name,
        inputs=inputs or "",
        library=library,
        units=units,
        headers=headers,
        link_flags=(f"-L{torch.library_dir}", *LINK_FLAGS),
        manifest={
            "fagen": __version__,
            "name": spec.name,
            "namespace": f"fagen_{spec.name}_{hash8}",
            "library": library,
            "torch": ">=" + ".".join(map(str, OLDEST_TORCH)),
            "target": "cpu",
            "isa": {
                "name": ", ".join(dict.fromkeys(p.isa for p in plans)),
                "features": list(features),
                "machine": platform.machine(),
            },
            "spec": {"file": path.name, "sha256": hashlib.sha256(spec.text.encode()).hexdigest()},
            "build": {
                "inputs": inputs,
                "check": check,
                "compiler": f"{compiler.kind} {compiler.version}",
                "torch": torch.version,
            },
            "variants": [
                {
                    "variant": p.variant.to_json(),
                    "plan": p.to_json(),
                    "objects": [unit.key for unit in kernels[p.variant.name]],
                }
                for p in plans
            ],
            "skipped": [{"name": name, "waits_for": list(keys)} for name, keys in spec.skipped],
        },
        check_level=check,
        fill=fill,
        check=run_check,
    )


def plan_spec(spec: Spec, variants: Sequence[Variant]) -> list[Plan]:
    """The plan of every variant. Raises one :class:`PlanError` with all that the target cannot do."""
    problems = [problem for name in spec.targets if (problem := _refuse_target(name, spec.path)) is not None]
    plans = []
    for variant in [] if problems else variants:
        try:
            plans.append(plan(variant))
        except PlanError as error:
            problems += error.problems
    if problems:
        raise PlanError(problems)
    return plans


def _refuse_target(name: str, path: str) -> Problem | None:
    built = ", ".join(other for other, target in TARGETS.items() if target.built)
    if name == "native":
        message = (
            "target native: no GPU is visible here" if not _gpu_visible() else "target native: no GPU is built for yet"
        )
        return Problem(message, path=path, hint=f"name a target: {', '.join(TARGETS)} (built so far: {built})")
    if not TARGETS[name].built:
        return Problem(f"target {name}: its schedule is not built yet", path=path, hint=f"built so far: {built}")
    return None


def _gpu_visible() -> bool:
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and Path("/dev/nvidia0").exists()


def _kernel(source: Source, headers: Headers, compiler: Compiler) -> Unit:
    key = object_key(source.text, source.flags, headers, compiler=compiler.identity)
    return Unit(source.name, f"{source.variant} {source.direction}", source.text, tuple(source.flags), key)


def _host(text: str, headers: Headers, compiler: Compiler, torch: Torch) -> Unit:
    # torch's headers are known by its version; where they are is this machine's business.
    key = object_key(
        text, HOST_FLAGS, headers, compiler=compiler.identity, extra=[f"torch {torch.version}", *LINK_FLAGS]
    )
    local = tuple(f"-isystem{folder}" for folder in torch.include_dirs)
    return Unit(_HOST, "binding", text, HOST_FLAGS, key, local)


def _write_sources(folder: Path, units: Sequence[Unit], headers: Headers) -> None:
    folder.mkdir()
    used: set[str] = set()
    for unit in units:
        (folder / unit.file).write_text(unit.text, encoding="utf-8")
        used.update(headers.used_by(unit.text.encode()))
    for name in sorted(used):
        path = folder / "include" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(headers.files[name])
