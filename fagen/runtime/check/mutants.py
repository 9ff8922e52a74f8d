"""Can the cases tell a variant's expressions from ones with a mistake in them?

A mutant's float64 result, rounded to the variant's dtypes, is presented as if the kernel had computed it; the rule
must reject it in some case. A mutant that no given case rejects gets cases aimed at it, at lengths taken from the
constants of the expression. If its mask and its scores agree with the variant's on all of those, it is taken to be
the same function.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..evaluate import Evaluator
from ..language import mutants, unparse, walk
from ..language.nodes import Number
from ..reference import names_of, reference, trees
from ..variant import Variant
from .cases import Case, aimed
from .compare import Expected
from .inputs import Inputs, draw, generator

_LONGEST = 2**17  # keys of an aimed case
_MOST_PAIRS = 2**19


@dataclass(frozen=True)
class Judged:
    """A case that was run: its inputs and what it should give."""

    case: Case
    inputs: Inputs
    expected: Expected


@dataclass
class Score:
    """How many mutants there were, were killed, and are the same function; descriptions of the survivors."""

    total: int = 0
    killed: int = 0
    equivalent: int = 0
    survivors: list[str] = field(default_factory=list)
    untried: int = 0


def hunt(
    variant: Variant, judged: list[Judged], seed: int, run: Callable[[Case], Judged | None], deadline: float | None
) -> Score:
    """Judge every mutant of ``variant``'s expressions by ``judged``, which is extended by the cases that ``run`` runs
    for those that none of them kills. Mutants still untried at ``deadline`` (time.monotonic) are counted, not judged.
    """
    score = Score()
    order = sorted((one for one in judged if _tells(one)), key=lambda one: one.case.q_len * one.case.kv_len)
    for description, mutant in _mutants(variant):
        if deadline is not None and time.monotonic() > deadline:
            score.untried += 1
            score.total += 1
            continue
        killer = next((one for one in order if _kills(one, mutant)), None)
        if killer is None:
            case = _distinguishing(variant, mutant, seed)
            if case is None:
                score.equivalent += 1
                continue
            known = next((one for one in order if one.case.name == case.name), None)
            fresh = run(case) if known is None else None
            if fresh is not None:
                order.append(fresh)
                killer = fresh if _kills(fresh, mutant) else None
        score.total += 1
        if killer is None:
            score.survivors.append(description)
            continue
        score.killed += 1
        # What kills one mutant often kills the next.
        order.remove(killer)
        order.insert(0, killer)
    return score


def _mutants(variant: Variant) -> Iterator[tuple[str, Variant]]:
    """Descriptions, and the variant with one expression changed."""
    mask, score = trees(variant)
    for tree, expression in ((mask, variant.mask), (score, variant.score)):
        if tree is None or expression is None:
            continue
        for description, mutant in mutants(tree):
            changed = replace(expression, resolved=unparse(mutant))
            if expression is variant.mask:
                yield f"mask: {description}", replace(variant, mask=changed)
            else:
                yield f"score: {description}", replace(variant, score=changed)


def _tells(judged: Judged) -> bool:
    return judged.expected.want["o"].numel() > 0 and not judged.case.poison


def _kills(judged: Judged, mutant: Variant) -> bool:
    inputs = judged.inputs
    with torch.no_grad():
        o, lse = reference(
            mutant,
            inputs.q,
            inputs.k,
            inputs.v,
            scale=inputs.scale,
            sink=inputs.sink,
            params=inputs.params,
            **inputs.dropout(),
        )
    got = {"o": o.to(inputs.q.dtype), "lse": lse.float()}
    return not all(deviation.passed for deviation in judged.expected.judge(got))


def _distinguishing(variant: Variant, mutant: Variant, seed: int) -> Case | None:
    """A case in which the mutant's mask, or a score that the mask admits, differs."""
    for q_len, kv_len in _lengths(variant):
        for runs in (False, True):
            case = aimed(q_len, kv_len, "peaked", runs)
            if _differ(variant, mutant, case, seed):
                return case
    return None


def _lengths(variant: Variant) -> list[tuple[int, int]]:
    """(queries, keys) at which constants of the expressions come to matter, the fewest pairs first."""
    numbers = {
        abs(int(node.value))
        for tree in trees(variant)
        if tree is not None
        for node in walk(tree)
        if isinstance(node, Number) and node.type == "int"
    }
    # Tiles of one constant counted by another: q // W - kv // W <= R.
    numbers |= {(a + 1) * b for a in numbers for b in numbers}
    found = {(1, 1), (2, 5), (5, 2), (37, 90)}
    for number in numbers:
        if number <= _LONGEST:
            found |= {(3, number + 4), (number + 4, 3), (number + 4, number + 4)}
    pairs = [(a, b) for a, b in found if a * b <= _MOST_PAIRS]
    return sorted(pairs, key=lambda lengths: (lengths[0] * lengths[1], lengths))


def _differ(variant: Variant, mutant: Variant, case: Case, seed: int) -> bool:
    known = [tree for tree in trees(variant) if tree is not None]
    inputs = draw(variant, known, replace(case, values="normal"), seed)
    extents = {"B": case.batch, "H": case.heads, "Hk": case.kv_heads, "Sq": case.q_len, "Skv": case.kv_len}
    b, h, i = (torch.arange(extents[name]) for name in ("B", "H", "Sq"))
    shape = case.batch, case.heads, case.q_len, case.kv_len
    names = names_of(variant, extents, b[:, None, None, None], h[:, None, None], i[:, None])
    names["s"] = torch.randn(shape, generator=generator(seed, case.name), dtype=torch.float64) * 4.0
    params = {
        name: tensor.double() if tensor.is_floating_point() else tensor if tensor.dtype == torch.bool else tensor.long()
        for name, tensor in inputs.params.items()
    }
    values: list[Sequence[torch.Tensor]] = []
    with torch.no_grad():
        for one in (variant, mutant):
            evaluate = Evaluator(names, params, torch.float64)
            mask, score = trees(one)
            allowed = torch.ones(shape, dtype=torch.bool) if mask is None else evaluate(mask).expand(shape)
            x = names["s"] if score is None else evaluate(score).double().expand(shape)
            values.append((allowed, x))
    (allowed, x), (other_allowed, other_x) = values
    same = torch.isclose(x, other_x, rtol=1e-12, atol=1e-12, equal_nan=True)
    return bool((allowed != other_allowed).any() or (allowed & ~same).any())
