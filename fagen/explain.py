"""`fagen explain`: what was planned for a variant and why, what its mask leaves to do, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .costs import Bound, ProblemSize, bounds, costs
from .plan import Plan
from .target import TARGETS
from .tilemap import TileMap, tile_map


@dataclass(frozen=True)
class Cost:
    """One direction at one size: operations over the admitted pairs, bytes moved and held beyond inputs and outputs.

    ``formulas`` has the same five as text, in B, H, Hk, Sq, Skv and pairs; see :class:`fagen.costs.Costs`. ``bounds``
    says how long the units of a card take at least, the slowest first, where that is known.
    """

    direction: str
    operations: float
    moved: float
    moved_unfused: float
    extra: float
    extra_unfused: float
    formulas: dict[str, str]
    bounds: tuple[Bound, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Everything `fagen explain` prints. ``resources`` says of each kernel of a module for cards what it takes,
    ``warnings`` what is wrong with that."""

    plan: Plan
    size: ProblemSize
    map: TileMap
    costs: tuple[Cost, ...]
    resources: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars."""
        return {
            "variant": self.plan.variant.to_json(),
            "target": self.plan.target,
            "isa": self.plan.isa,
            "size": vars(self.size),
            "choices": [{"name": name, "value": value, "why": why} for name, value, why in _choices(self.plan)],
            "resources": dict(self.resources),
            "warnings": list(self.warnings),
            "tiles": self.map.to_json(),
            "costs": [{**vars(cost), "bounds": [vars(bound) for bound in cost.bounds]} for cost in self.costs],
        }

    def text(self) -> str:
        """The same for people."""
        return "\n".join(_lines(self))


def explain(
    plan: Plan, size: ProblemSize, resources: Mapping[str, str] | None = None, warnings: Sequence[str] = ()
) -> Explanation:
    """Account for a plan at a problem size; nothing is compiled. ``resources`` and ``warnings`` are those of its
    kernels, if known.

    The mask's params, if it has any, are drawn as the build's check draws them; the tile map is of the first batch
    entry and head, and the costs take its share of admitted pairs for all of them.
    """
    drawn = tile_map(plan, size)
    pairs = drawn.admitted * size.batch * size.heads
    found = tuple(_cost(plan, size, pairs, each) for each in plan.directions)
    return Explanation(plan, size, drawn, found, resources or {}, warnings)


def _cost(plan: Plan, size: ProblemSize, pairs: float, direction: str) -> Cost:
    found = costs(plan, direction)
    values = {
        "B": size.batch,
        "H": size.heads,
        "Hk": size.kv_heads,
        "Sq": size.q_len,
        "Skv": size.kv_len,
        "pairs": pairs,
    }
    formulas = {item.name: getattr(found, item.name) for item in fields(found)}
    numbers = {
        name: float(formula.subs({symbol: values[symbol.name] for symbol in formula.free_symbols}))
        for name, formula in formulas.items()
    }
    texts = {name: str(formula) for name, formula in formulas.items()}
    return Cost(direction=direction, formulas=texts, bounds=bounds(plan, pairs, direction), **numbers)


def _choices(plan: Plan) -> Iterator[tuple[str, Any, str]]:
    """(name, value, reason) of everything the planner decided, in the plan's own order."""
    values: dict[str, Any] = {"target": plan.target, "schedule": plan.schedule, "isa": plan.isa, "flags": plan.flags}
    values |= {item.name: getattr(plan.forward, item.name) for item in fields(plan.forward)}
    if plan.backward is not None:
        values |= {f"backward.{item.name}": getattr(plan.backward, item.name) for item in fields(plan.backward)}
    for name, why in plan.why.items():
        yield name, values.get(name), why


def _lines(explanation: Explanation) -> Iterator[str]:
    plan, size = explanation.plan, explanation.size
    variant = plan.variant
    yield f"{variant.name}, of spec {plan.spec}, for {plan.target}" + (f" ({plan.isa})" if plan.isa else "")
    yield f"  {variant.dtype}, head dim {variant.head_dim}, value dim {variant.value_dim}, layout {variant.layout}"
    for what, expression in (("mask", variant.mask), ("score", variant.score)):
        if expression is not None:
            same = expression.text == expression.resolved
            yield f"  {what}: {expression.text}" + ("" if same else f"   that is: {expression.resolved}")
    yield "\nchoices"
    for name, value, why in _choices(plan):
        shown = " ".join(value) if isinstance(value, tuple) else value
        yield f"  {name}: {shown}\n      {why}" if shown not in (None, "") else f"  {name}\n      {why}"
    if explanation.resources:
        yield "\nkernels, by ptxas"
        for kernel, taken in explanation.resources.items():
            yield f"  {kernel}: {taken}"
        for warning in explanation.warnings:
            yield f"  warning: {warning}"
    heads = f"H {size.heads}" + (f", Hk {size.kv_heads}" if size.kv_heads != size.heads else "")
    at = f"B {size.batch}, {heads}, Sq {size.q_len}, Skv {size.kv_len}"
    tiles = f"{explanation.map.tile_q} queries × {explanation.map.tile_kv} keys"
    yield f"\ntiles of {tiles}, at {at} (first batch and head)"
    yield from explanation.map.lines()
    for cost in explanation.costs:
        yield f"\n{cost.direction}, at {at}"
        yield f"  operations    {_si(cost.operations)}op   = {cost.formulas['operations']}"
        yield from _beside(cost, "bytes moved", "moved")
        yield from _beside(cost, "bytes held besides inputs and outputs", "extra")
        yield from _bounds(plan, cost.bounds)


def _beside(cost: Cost, title: str, name: str) -> Iterator[str]:
    """The kernel's figure and, below it, that of the unfused formula, each with its formula."""
    ours, unfused = getattr(cost, name), getattr(cost, f"{name}_unfused")
    ratio = unfused / ours if ours else 1.0
    yield f"  {title}"
    yield f"    this kernel {_si(ours)}B   = {cost.formulas[name]}"
    yield f"    unfused     {_si(unfused)}B, {ratio:.1f}×   = {cost.formulas[f'{name}_unfused']}"


def _bounds(plan: Plan, found: Sequence[Bound]) -> Iterator[str]:
    """The least time, and what each unit has to do for a pair in tiles that the mask leaves whole."""
    device = TARGETS[plan.target].device
    if not found or device is None or device.rates is None:
        return
    rates = device.rates
    yield f"  takes at least {_si(found[0].seconds)}s, bound by {found[0].unit}"
    yield f"    of {rates.multiprocessors} multiprocessors at {_si(rates.clock)}Hz"
    for bound in found:
        yield f"    {bound.unit:<17} {_si(bound.seconds)}s   = pairs · {bound.per_pair:g} / {bound.per_clock} a clock"


def _si(number: float) -> str:
    """Three digits and a decimal prefix."""
    prefixes = iter(" kMGTP")
    prefix = next(prefixes)
    if 0 < number < 1:
        return f"{1000 * number:.3g} m" if number >= 0.9995e-3 else f"{1e6 * number:.3g} µ"
    while abs(number) >= 999.5 and prefix != "P":
        number, prefix = number / 1000, next(prefixes)
    return f"{number:.3g} {prefix.strip()}"
