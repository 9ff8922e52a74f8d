"""A spec to a folder of candidates: each variant's, in modules of a few, those most like the planner's own first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..build import build
from ..build.keys import digest
from ..build.planning import plan_spec, target_key
from ..build.progress import Progress
from ..build.published import read_manifest
from ..errors import CompileError, PlanError, Problem, UsageError
from ..plan import schedule
from ..plan.candidates import candidates
from ..plan.tuned import PLAN_VERSION, shape_class, tiles_in_words
from ..runtime.variant import Tiles, Variant
from ..spec import Spec, expand, load
from ..spec.names import MAX_NAME
from .folder import Candidate, Sweep, Swept, label_of, read_sweep

OWN = "own"
_MODULE = 12  # candidates: one host unit, and one process that checks, for all of them; a budget ends between modules
_SUFFIX = 5  # characters of a module's name after the variant's


@dataclass
class _Work:
    """One direction of a variant and the modules of its candidates, each as the variants that are in it; ``field`` is
    what they call the tiles that they differ in."""

    variant: Variant
    swept: Swept
    modules: list[list[Variant]]
    field: str = "tiles"


def compile_sweep(
    spec_path: Path,
    folder: Path,
    *,
    names: Sequence[str] = (),
    most: int | None = None,
    budget: float | None = None,
    jobs: int | None = None,
    progress: Callable[[], Progress],
    tell: Callable[[str], None],
) -> Sweep:
    """Compile the candidates of a spec's variants (of ``names``, if any) into ``folder``.

    ``most`` limits how many of each; after ``budget`` seconds no further module is begun, each variant having had its
    turn. What was compiled before is found again. A candidate that a compiler refuses, or that spills registers, is
    pruned. Raises FagenError.
    """
    begun = time.monotonic()
    spec = load(spec_path)
    folder.mkdir(parents=True, exist_ok=True)
    work = list(_planned(spec, _wanted(spec, names), most, tell))
    if not work:
        raise PlanError(Problem("there is nothing to tune: all variants have tiles of their own", str(spec_path)))
    sweep = Sweep(spec.name, PLAN_VERSION, (*(each.swept for each in work), *_others(folder, work)))
    for turn in range(max(len(each.modules) for each in work)):
        for each in work:
            if turn >= len(each.modules):
                continue
            module, wanted = _module_name(each.variant.name, each.swept.direction, turn), each.modules[turn]
            # What is there is found again in a moment, so that nothing of it is left out.
            if budget is not None and time.monotonic() - begun > budget and read_manifest(folder / module) is None:
                continue
            _build(spec, each, module, wanted, folder, jobs, progress, tell)
            each.swept.waiting -= len(wanted)
            sweep.write(folder)
    sweep.write(folder)
    return sweep


def _others(folder: Path, work: Sequence[_Work]) -> list[Swept]:
    """The variants that an earlier sweep of the same folder compiled, and this one was not asked for."""
    try:
        before = read_sweep(folder)
    except UsageError:
        return []
    names = {each.variant.name for each in work}
    return [each for each in before.variants if each.variant not in names and before.version == PLAN_VERSION]


def _wanted(spec: Spec, names: Sequence[str]) -> list[Variant]:
    variants = expand(spec)
    known = [variant.name for variant in variants]
    for name in names:
        if name not in known:
            raise UsageError(Problem(f"--variant: no variant {name}", hint=f"there are {', '.join(known)}"))
    return [variant for variant in variants if not names or variant.name in names]


def _planned(spec: Spec, variants: Sequence[Variant], most: int | None, tell: Callable[[str], None]) -> Iterator[_Work]:
    plans = plan_spec(spec, variants)  # all that is wrong with any of them, before anything is compiled
    taken: dict[tuple[str, str], str] = {}
    for variant, plan in zip(variants, plans, strict=True):
        of = schedule(plan.schedule)
        searches = {"forward": of.search}
        if of.backward_search is not None and variant.backward:
            searches["backward"] = of.backward_search
        for direction, search in searches.items():
            label = label_of(variant.name, direction)
            if getattr(variant, search.field) != Tiles():
                tell(f"{label}: its tiles are the spec's own; there is nothing to tune")
                continue
            same = taken.setdefault((shape_class(variant), direction), variant.name)
            if same != variant.name:
                tell(f"{label}: as fast as {same}, whose tiles it gets")
                continue
            tried = variant
            # Where backward kernels have tiles of their own, candidates for forward need none of them.
            if direction == "forward" and of.backward_search is not None:
                tried = replace(variant, backward=False, backward_tiles=Tiles())
            yield _work(spec, variant, tried, plan.target, direction, search.field, most)


def _work(
    spec: Spec, variant: Variant, tried: Variant, target: str, direction: str, field: str, most: int | None
) -> _Work:
    """``tried`` is the variant as it is compiled."""
    found = candidates(tried, target, spec.isa, direction)
    kept = found.tiles[:most]
    renamed = []
    for tiles in kept:
        change: dict[str, Any] = {field: tiles}
        renamed.append(replace(tried, name=_name(tiles), **change))
    swept = Swept(
        variant.name, shape_class(variant), target_key(variant, target, spec.isa), renamed[0].name,
        pruned={tiles_in_words(each.tiles): each.why for each in found.pruned}, waiting=len(kept), direction=direction,
    )  # fmt: skip
    for tiles in found.tiles[len(kept) :]:
        swept.pruned[tiles_in_words(tiles)] = f"{most} are nearer to the planner's own choice"
    modules = [renamed[first : first + _MODULE] for first in range(0, len(renamed), _MODULE)]
    return _Work(variant, swept, modules, field)


def _build(
    spec: Spec, work: _Work, module: str, variants: Sequence[Variant], folder: Path, jobs: int | None,
    progress: Callable[[], Progress], tell: Callable[[str], None],
) -> None:  # fmt: skip
    """Build one module of candidates, without those that do not compile, and put them into what is swept."""
    swept, field = work.swept, work.field
    left = list(variants)
    path = folder / f"{module}.yaml"
    target = swept.target.split()[0]
    while left:
        path.write_text(spec_text(module, target, spec.isa, left), encoding="utf-8")
        try:
            build(path, out=folder, check="off", jobs=jobs, progress=progress())
            break
        except CompileError as error:
            message = error.problems[0].message
            refused = next((each for each in left if f"(compiling {each.name} " in message), None)
            if refused is None:  # the machine's doing, as want of memory, or the module's
                raise
            left.remove(refused)
            swept.pruned[tiles_in_words(getattr(refused, field))] = f"it does not compile: {message}"
            tell(f"{swept.label}: {refused.name} does not compile: {message}")
    manifest = read_manifest(folder / module) if left else None
    for entry in (manifest or {"variants": []})["variants"]:
        name, tiles = entry["variant"]["name"], Tiles(**entry["variant"][field])
        if spilled := _spilled(entry, swept.direction):
            swept.pruned[tiles_in_words(tiles)] = spilled
            tell(f"{swept.label}: {name} is left out: {spilled}")
            continue
        given = {key: value for key, value in vars(tiles).items() if value is not None and key != "measured"}
        swept.candidates.append(Candidate(name, module, digest(entry["objects"]), given))


def _spilled(entry: dict[str, Any], direction: str) -> str:
    """What ptxas says against a candidate's kernels of a direction, "" if nothing."""
    kernels = entry.get("resources", {})
    for taken in (taken for kernel, taken in kernels.items() if ("_backward" in kernel) == (direction == "backward")):
        if taken["spill_stores"] or taken["spill_loads"]:
            return f"by ptxas it spills {taken['spill_stores']} bytes a thread and reads {taken['spill_loads']} back"
        if taken.get("serialized"):
            return f"by ptxas its products wait for each other: {taken['serialized']}"
    return ""


def _name(tiles: Tiles) -> str:
    """As `q128_kv64_s2_scores`."""
    parts = [
        f"q{tiles.q}" if tiles.q else "",
        f"kv{tiles.kv}" if tiles.kv else "",
        f"s{tiles.stages}" * bool(tiles.stages),
    ]
    return "_".join(part for part in (*parts, tiles.turns) if part) or OWN


def _module_name(variant: str, direction: str, number: int) -> str:
    short = variant if len(variant) + _SUFFIX <= MAX_NAME else f"v{digest(variant)[:12]}"
    return f"{short}_{number}" if direction == "forward" else f"{short}_b{number}"


def spec_text(name: str, target: str, isa: str, variants: Sequence[Variant]) -> str:
    """A spec of variants that read the same params, with their expressions resolved: JSON in YAML, a variant a line."""
    lines = [f"fagen: 1\nname: {name}\ntarget: {target}", f"isa: {isa}" if target == "cpu" else ""]
    if params := variants[0].params:
        lines.append("params:")
        for param in params:
            values = {"dtype": param.dtype, "shape": list(param.shape), "grad": param.grad}
            lines.append(f"  {param.name}: {json.dumps(values)}")
    lines.append("variants:")
    keys = (
        "name",
        "head_dim",
        "value_dim",
        "dtype",
        "layout",
        "backward",
        "align",
        "sink",
        "nonfinite",
        "deterministic",
        "dropout",
    )
    for variant in variants:
        given: dict[str, Any] = {key: getattr(variant, key) for key in keys}
        given |= {} if variant.scale is None else {"scale": variant.scale}
        given |= {key: text.resolved for key in ("mask", "score") if (text := getattr(variant, key)) is not None}
        for field in ("tiles", "backward_tiles"):
            sizes = vars(getattr(variant, field))
            if tiles := {key: size for key, size in sizes.items() if size is not None and key != "measured"}:
                given[field] = tiles
        lines.append(f"  - {json.dumps(given, ensure_ascii=False)}")
    return "\n".join(line for line in lines if line) + "\n"
