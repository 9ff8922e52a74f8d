"""What a spec needs built: its units with their keys, and the files of its module."""

from __future__ import annotations

import hashlib
import platform
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import PlanError, Problem
from ..render_module import LINK_FLAGS, render_module
from ..resources import templates_dir
from ..runtime.variant import Variant
from ..spec import expand, load
from ..target import ISAS
from ..toolchain import OLDEST_TORCH, Compiler, Torch
from .cache import Cache
from .check import check_module
from .compile import Unit
from .cuda import Resources, ptx_of, resources_of
from .failure import shown_path
from .job import Job
from .keys import Headers, digest, read_headers
from .planning import plan_spec, render_plan
from .progress import Progress
from .units import HOST, backward_images_of, host_unit, images_of, kernel_unit, nvcc_for

_RUNTIME = Path(__file__).resolve().parents[1] / "runtime"
_NAME = "name.cpp"  # the one unit that holds the namespace


def make_job(
    path: Path, inputs: str | None, compiler: Compiler, torch: Torch, verdicts: Cache | None, check: str
) -> Job:
    """The job that builds the spec at ``path``. Raises :class:`SpecError` or :class:`PlanError`.

    ``inputs`` is the digest that the manifest keeps, ``check`` the level of checking, ``verdicts`` where earlier
    verdicts are looked up (None: check everything again).
    """
    spec = load(path)
    variants = expand(spec)
    if not variants:
        place = spec.entries[0].place
        raise PlanError(
            Problem("every variant waits for keys that are not built yet", spec.path, place.line, place.column)
        )
    plans = plan_spec(spec, variants)
    nvcc = nvcc_for(plans)
    headers = read_headers(templates_dir() / "include")
    kernels = {
        p.variant.name: [kernel_unit(source, p, headers, compiler, nvcc) for source in render_plan(p, spec.path)]
        for p in plans
    }
    images, backward_images = images_of(plans), backward_images_of(plans)
    isas = list(dict.fromkeys(p.isa for p in plans if p.isa is not None))
    features = tuple(dict.fromkeys(feature for isa in isas for feature in ISAS[isa].features))

    def module_files(namespace: str, of: Sequence[Variant] = variants) -> dict[str, str]:
        return render_module(
            spec.name,
            of,
            namespace=namespace,
            features=features,
            spec_file=path.name,
            images=images,
            backward_images=backward_images,
        )

    def front_key(variant: Variant) -> str:
        """Of all that stands between a caller and this variant's kernels, whatever other variants there are."""
        files = module_files("", [variant])
        return digest([files, host_unit(files[HOST], headers, compiler, torch).key])

    host = host_unit(module_files(f"fagen_{spec.name}")[HOST], headers, compiler, torch)
    units = [host, *(unit for group in kernels.values() for unit in group)]
    hash8 = digest([spec.name, sorted(unit.key for unit in units)])[:8]
    files = module_files(f"fagen_{spec.name}_{hash8}")
    name_unit = files[_NAME]
    library = f"library_{hash8}.so"
    entries = [
        {
            "variant": p.variant.to_json(),
            "plan": p.to_json(),
            "objects": [*(unit.key for unit in kernels[p.variant.name]), front_key(p.variant)],
        }
        for p in plans
    ]

    def fill(folder: Path, work: Path, progress: Progress) -> Mapping[str, Any]:
        _write_sources(folder / "sources", units, headers)
        (folder / "sources" / _NAME).write_text(name_unit, encoding="utf-8")
        for name, text in files.items():
            if name not in (HOST, _NAME):
                (folder / name).write_text(text, encoding="utf-8")
        _copy_runtime(folder / "runtime")
        if nvcc is None:
            return {}
        return {"variants": _with_resources(entries, kernels, folder, work)}

    def run_check(folder: Path, kept: Path, progress: Progress) -> Mapping[str, Any]:
        if check == "off":
            return {}
        command = f"fagen check {shlex.quote(str(shown_path(kept)))} -v"
        return check_module(folder, level=check, cache=verdicts, progress=progress, command=command)

    return Job(
        name=spec.name,
        inputs=inputs or "",
        library=library,
        units=units,
        name_unit=name_unit,
        headers=headers,
        link_flags=(f"-L{torch.library_dir}", *LINK_FLAGS),
        manifest={
            "fagen": __version__,
            "name": spec.name,
            "namespace": f"fagen_{spec.name}_{hash8}",
            "library": library,
            "torch": ">=" + ".".join(map(str, OLDEST_TORCH)),
            "target": plans[0].target,
            "device": "cpu" if nvcc is None else "cuda",
            "isa": {
                "name": ", ".join(isas),
                "features": list(features),
                "machine": platform.machine(),
            },
            "spec": {"file": path.name, "sha256": hashlib.sha256(spec.text.encode()).hexdigest()},
            "build": {
                "inputs": inputs,
                "check": check,
                "compiler": f"{compiler.kind} {compiler.version}",
                **({} if nvcc is None else {"nvcc": nvcc.version}),
                "torch": torch.version,
            },
            "variants": entries,
            "skipped": [{"name": name, "waits_for": list(keys)} for name, keys in spec.skipped],
        },
        check_level=check,
        fill=fill,
        check=run_check,
    )


def _with_resources(
    entries: Sequence[Mapping[str, Any]],
    kernels: Mapping[str, Sequence[Unit]],
    folder: Path,
    work: Path,
) -> list[dict[str, Any]]:
    """``entries`` with what ptxas says of each kernel; puts their PTX into ``folder``."""
    (folder / "ptx").mkdir()
    full = []
    for entry in entries:
        found: dict[str, Resources] = {}
        for unit in kernels[entry["variant"]["name"]]:
            (folder / "ptx" / unit.file).with_suffix(".ptx").write_bytes(ptx_of(unit, work))
            found |= resources_of(unit, work)
        full.append({**entry, "resources": {kernel: asdict(taken) for kernel, taken in found.items()}})
    return full


def _copy_runtime(folder: Path) -> None:
    """Contents alone: an installed fagen may be read-only, and a published module must be deletable."""
    for path in sorted(_RUNTIME.rglob("*.py")):
        copy = folder / path.relative_to(_RUNTIME)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())


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
