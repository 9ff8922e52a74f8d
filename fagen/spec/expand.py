"""Families to variants: matrix products, names, constants and expressions."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..errors import SpecError
from ..runtime.language import Node
from ..runtime.variant import Expression, Param, Tiles, Variant
from . import names
from .document import Place, Scalar, describe, shorten
from .expressions import Names, params_read, read, read_constant, resolved, words_used, written
from .features import PARTLY_BUILT, is_built, not_built_message, unbuilt_keys
from .model import Entry, Spec, Value
from .schema import variant_keys
from .validate import Found, told

MAX_VARIANTS = 1000  # of a spec
MAX_PARAMS = 16  # read by one variant: kMaxParams of params.h

_BARE_NAME = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass
class Expansion:
    """All that came of a spec: its variants, those that wait for later, and every mistake."""

    variants: list[Variant] = field(default_factory=list)
    skipped: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    founds: list[Found] = field(default_factory=list)


@dataclass(frozen=True)
class _Member:
    """One combination of a family's matrix."""

    name: str
    values: Mapping[str, Value]  # of the entry and of its matrix
    consts: Mapping[str, int | float]
    combination: str  # for messages


def expand(spec: Spec) -> list[Variant]:
    """The variants of a spec, in the file's order, those marked ``later`` left out. Raises SpecError."""
    expansion = expand_all(spec)
    if expansion.founds:
        raise SpecError(told(expansion.founds, spec.path))
    return expansion.variants


def expand_all(spec: Spec) -> Expansion:
    """The same with the mistakes collected rather than raised."""
    result = Expansion()
    total = 0
    for entry in spec.entries:
        total += math.prod(len(axis) for axis in entry.matrix.values())
        if total > MAX_VARIANTS:
            counted = f"{total:,}" if total < 10**12 else "more than 10^12"
            message = f"this makes {counted} variants so far; a spec holds at most {MAX_VARIANTS:,}"
            result.founds.append(Found(message, entry.place))
            return result
    taken: dict[str, tuple[str, Place]] = {}
    for entry in spec.entries:
        family = _Family(spec, entry, result)
        for member in family.members():
            if family.claim(member, taken):
                family.add(member)
        family.check_axes_used()
    return result


class _Family:
    """Expands one entry into ``result``."""

    def __init__(self, spec: Spec, entry: Entry, result: Expansion):
        self.spec, self.entry, self.result = spec, entry, result

    def say(self, message: str, place: Place, hint: str | None = None, word: str = "", choices: object = ()) -> None:
        self.result.founds.append(Found(message, place, hint, word, tuple(choices)))  # type: ignore[arg-type]

    def members(self) -> Iterator[_Member]:
        """Every combination of the matrix, in order, the last axis fastest; none where the name cannot be made."""
        entry = self.entry
        if "matrix" in entry.broken or "name" in entry.broken or not self._template_is_right():
            return
        for combination in itertools.product(*entry.matrix.values()):
            chosen = dict(zip(entry.matrix, combination, strict=True))
            shown = {axis: _text(value) for axis, value in chosen.items()}
            name = "".join(
                shown[part] if odd % 2 else part for odd, part in enumerate(_BARE_NAME.split(entry.template))
            )
            listed = ", ".join(f"{axis}: {text}" for axis, text in shown.items())
            problem = names.variant_name_problem(name)
            if problem:
                of = f" (from {{{listed}}})" if listed else ""
                self.say(f"variant name `{shorten(name)}`{of} {problem}", entry.place)
                continue
            numbers = {axis: value.value for axis, value in chosen.items() if _is_number(value.value)}
            of_variant = {axis: value for axis, value in chosen.items() if axis in variant_keys()}
            values = {**entry.values, **of_variant}
            yield _Member(name, values, {**self._widths(values), **self.spec.consts, **numbers}, listed)

    def _widths(self, values: Mapping[str, Value]) -> dict[str, int | float]:
        """The head dims as constants, unless the spec gives their names to something else."""
        head_dim = values.get("head_dim")
        widths = {"head_dim": head_dim, "value_dim": values.get("value_dim", head_dim)}
        taken = self.spec.params.keys() | self.spec.defines.keys()
        return {key: value.value for key, value in widths.items() if value is not None and key not in taken}

    def _template_is_right(self) -> bool:
        rest = _BARE_NAME.sub(lambda match: " " * len(match.group()), self.entry.template)
        wrong = re.search(r"[{}][^{}]*[{}]?", rest)
        if wrong:
            shown = shorten(self.entry.template[wrong.start() : wrong.end()])
            self.say(
                f"`{shown}` in the name: expected the bare name of a matrix key in braces",
                self.entry.place,
                "write for example `{head_dim}`",
            )
            return False
        unknown = [name for name in _BARE_NAME.findall(self.entry.template) if name not in self.entry.matrix]
        for name in unknown:
            self.say(
                f"`{{{shorten(name)}}}` in the name is not a key of this variant's matrix",
                self.entry.place,
                None if self.entry.matrix else "give it a matrix, or write the name out",
                name,
                self.entry.matrix,
            )
        return not unknown

    def claim(self, member: _Member, taken: dict[str, tuple[str, Place]]) -> bool:
        """Takes the member's name, unless another has it: file systems may not tell upper from lower case."""
        name, place = member.name, self.entry.place
        if name.lower() not in taken:
            taken[name.lower()] = (name, place)
            return True
        other, first = taken[name.lower()]
        if first == place:
            left_out = [f"{{{axis}}}" for axis in self.entry.matrix if f"{{{axis}}}" not in self.entry.template]
            self.say(
                f"the matrix gives several variants the name `{name}`",
                place,
                f"use {' and '.join(left_out)} in the name" if left_out else None,
            )
        else:
            but = "" if other == name else f" (as `{other}`: the two differ only in case)"
            self.say(
                f"variant `{name}` is there already, at line {first.line}, column {first.column}{but}",
                place,
                "give one of them another name",
            )
        return False

    def add(self, member: _Member) -> None:
        """Checks a member and puts it among the variants or the skipped."""
        before = len(self.result.founds)
        waits = self._waits(member)
        values = member.values
        if "head_dim" not in values and "head_dim" not in self.entry.broken:
            self.say(
                f"variant `{member.name}` has no `head_dim`",
                self.entry.place,
                "set it here, in its matrix or under `defaults`",
            )
        missing = {key for key in ("head_dim", "value_dim") if key in self.entry.broken or "head_dim" not in values}
        broken = self.spec.broken | (missing - self.spec.params.keys() - self.spec.defines.keys())
        known = Names(self.spec.params, member.consts, self.spec.defines, broken)
        mask, mask_tree = self._expression(values.get("mask"), "mask", known)
        score, score_tree = self._expression(values.get("score"), "score", known)
        scale = self._scale(values.get("scale"), known)
        used = params_read(mask_tree, score_tree)
        params = tuple(param for param in self.spec.params.values() if param.name in used)
        if len(params) > MAX_PARAMS:
            self.say(
                f"variant `{member.name}` reads {len(params)} params; at most {MAX_PARAMS} are allowed",
                self.entry.place,
            )
        if len(self.result.founds) > before or "head_dim" in self.entry.broken:
            return
        if waits:
            self.result.skipped.append((member.name, self.entry.later))
        else:
            self.result.variants.append(_variant(self.spec, self.entry, member, mask, score, scale, params))

    def _waits(self, member: _Member) -> bool:
        """Whether the member uses keys that are not built yet; says so of those that ``later`` doesn't name."""
        waits = False
        for key, value in member.values.items():
            if is_built(key, value.value):
                continue
            waits = True
            if key not in self.entry.later:
                place = value.node.place if key in PARTLY_BUILT else value.key_place
                self.say(not_built_message(key, describe(value.node)), place)
        for key in self.entry.later:
            if key not in variant_keys():
                self.say(
                    f"`later` names `{shorten(key)}`, which is not a key", self.entry.place, None, key, unbuilt_keys()
                )
            elif key not in member.values:
                self.say(f"`later` names `{key}`, which variant `{member.name}` does not set", self.entry.place)
        if self.entry.later and not waits:
            self.say(
                f"everything that `later` names is built, so variant `{member.name}` need not wait",
                self.entry.place,
                "remove `later`",
            )
        return waits

    def _expression(self, value: Value | None, key: str, known: Names) -> tuple[Expression | None, Node | None]:
        if value is None or not isinstance(value.node, Scalar):
            return None, None
        text = written(value.node, self.spec.document)
        node, problems = read(text, key, known, key)
        self.result.founds += problems
        return (resolved(text, node), node) if node is not None else (None, None)

    def _scale(self, value: Value | None, known: Names) -> float | None:
        if value is None or not isinstance(value.node, Scalar):
            return None
        number, problems = read_constant(written(value.node, self.spec.document), known, "scale")
        self.result.founds += problems
        return None if number is None else float(number)

    def check_axes_used(self) -> None:
        """A matrix key that neither the schema, the name nor an expression knows is a mistyped one."""
        axes = [axis for axis in self.entry.matrix if axis not in variant_keys()]
        if not axes:
            return
        nodes = [self.entry.values[key].node for key in ("mask", "score", "scale") if key in self.entry.values]
        for key in ("mask", "score", "scale"):
            nodes += [value.node for value in self.entry.matrix.get(key, ())]
        words = words_used([node.text for node in nodes if isinstance(node, Scalar)], self.spec.defines)
        for axis in axes:
            if axis not in words:
                self.say(
                    f"matrix key `{axis}` is not a key of a variant, and no expression of this one uses it",
                    self.entry.matrix[axis][0].key_place,
                    None,
                    axis,
                    variant_keys(),
                )


def _variant(
    spec: Spec,
    entry: Entry,
    member: _Member,
    mask: Expression | None,
    score: Expression | None,
    scale: float | None,
    params: tuple[Param, ...],
) -> Variant:
    given = {key: value.value for key, value in member.values.items()}
    tiles, backward_tiles = given.get("tiles"), given.get("backward_tiles")
    head_dim = given["head_dim"]
    return Variant(
        name=member.name,
        head_dim=head_dim,
        value_dim=given.get("value_dim", head_dim),
        dtype=given.get("dtype", "bf16"),
        layout=given.get("layout", "bshd"),
        backward=given.get("backward", True),
        scale=scale,
        align=given.get("align", "bottom_right"),
        mask=mask,
        score=score,
        sink=given.get("sink", False),
        params=params,
        nonfinite=given.get("nonfinite", "contain"),
        deterministic=given.get("deterministic", False),
        dropout=given.get("dropout", False),
        isa=spec.isa,
        tiles=Tiles() if tiles is None else Tiles(tiles.q, tiles.kv, tiles.stages, tiles.turns),
        backward_tiles=Tiles()
        if backward_tiles is None
        else Tiles(backward_tiles.q, backward_tiles.kv, backward_tiles.stages),
        line=entry.place.line,
        column=entry.place.column,
    )


def _text(value: Value) -> str:
    """A matrix value as a name spells it."""
    if isinstance(value.value, bool):
        return "true" if value.value else "false"
    return value.node.text if isinstance(value.node, Scalar) else ""


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
