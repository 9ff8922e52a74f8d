"""Values for the run-time inputs of a variant's expressions, drawn so that the expressions do something.

How an expression uses a param decides what is drawn: one that is compared with positions gets positions, one
compared with itself (document ids) few distinct labels, one used as an index gets indices, the rest numbers of a
size that shifts scores by a few units. A dim that may have any length gets as many entries as are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..fakes import DTYPES
from ..language.nodes import Binary, Call, Compare, Conditional, Name, Node, Number, Read, Unary, children, walk
from ..variant import Param, Variant
from .cases import Case

_STEPS = 8.0  # numbers a unit beside large scores: so fine that float32 holds their sums
_POSITIONS = {"q", "kv", "i", "j", "q_len", "kv_len"}

Range = tuple[int, int]


@dataclass(frozen=True)
class Usage:
    """How the expressions use one param: whether it is compared with positions, used in an index, multiplied by
    something that grows with positions, only ever added to scores, or only ever a term of what a mask compares; the
    integers it is compared with; and its reads' indices."""

    position: bool
    index: bool
    grows: bool
    added: bool
    compared: bool
    constants: tuple[int, ...]
    reads: tuple[tuple[Node, ...], ...]


def usage(param: Param, trees: Sequence[Node]) -> Usage:
    """How ``trees`` (the mask's and the score's) use ``param``."""
    position = index = grows = False
    terms = 0
    constants: list[int] = []
    reads: list[tuple[Node, ...]] = []
    for node in (node for tree in trees for node in walk(tree)):
        match node:
            case Read(param=name, indices=indices):
                index = index or any(_mentions(below, param.name) for below in indices)
                if name == param.name:
                    reads.append(indices)
            case Compare(left=left, right=right):
                terms += sum(term.param == param.name for side in (left, right) for term in _added(side))
                for side, other in ((left, right), (right, left)):
                    if _mentions(side, param.name):
                        position = position or _positional(other) or _positional(side)
                        constants += [n.value for n in walk(other) if isinstance(n, Number) and type(n.value) is int]
            case Binary(op="*", left=left, right=right):
                for side, other in ((left, right), (right, left)):
                    grows = grows or (_mentions(side, param.name) and other.type == "int")
            case _:
                pass
    score = next((tree for tree in trees if tree.type == "real"), None)
    added = score is not None and sum(term.param == param.name for term in _added(score)) == len(reads) > 0
    compared = terms == len(reads) > 0 and not (score is not None and _mentions(score, param.name))
    return Usage(position, index, grows, added, compared, tuple(constants), tuple(reads))


def _added(node: Node) -> Iterator[Read]:
    """The reads that a score, or what is compared, is a sum of, with other terms."""
    match node:
        case Read():
            yield node
        case Binary(op="+", left=left, right=right):
            yield from _added(left)
            yield from _added(right)
        case Binary(op="-", left=left):
            yield from _added(left)
        case _:
            pass


def draw_params(variant: Variant, trees: Sequence[Node], case: Case, generator: torch.Generator) -> dict[str, Tensor]:
    """A contiguous tensor for each of the variant's params, in order."""
    shape = {"B": case.batch, "H": case.heads, "Hk": case.kv_heads, "Sq": case.q_len, "Skv": case.kv_len}
    uses = {param.name: usage(param, trees) for param in variant.params}
    drawn: dict[str, Tensor] = {}
    # Of one whose index is read from itself, or from one that is read at it, what it may be is all that is known.
    known = {param.name: _integers(param, uses[param.name], case) for param in variant.params}
    likely = {name: (min(integers), max(integers)) for name, integers in known.items() if integers}
    for param in _inner_first(variant, uses):
        use = uses[param.name]
        ranges = name_bounds(variant, case) | likely | {name: value_bounds(tensor) for name, tensor in drawn.items()}
        # "n" is one length within a param: the longest that a dim of it is read at.
        free = [dim for dim, extent in enumerate(param.shape) if extent not in shape and isinstance(extent, str)]
        highest = max((bounds_of(indices[dim], ranges)[1] for dim in free for indices in use.reads), default=0)
        any_length = max(highest + 1 + case.slack, 1)
        extents = [shape.get(extent, any_length) if isinstance(extent, str) else extent for extent in param.shape]
        drawn[param.name] = _draw(param, use, tuple(extents), case, generator)
    return {param.name: drawn[param.name] for param in variant.params}


def _draw(param: Param, use: Usage, shape: tuple[int, ...], case: Case, generator: torch.Generator) -> Tensor:
    dtype = DTYPES[param.dtype]
    if dtype.is_floating_point:
        size = 1.0 / 16.0 if use.grows else 1.0
        values = torch.randn(shape, generator=generator) * size
        if case.values == "large":
            steps = (values * _STEPS).round()
            values = torch.where(steps == 0, values.sign(), steps) / _STEPS
        if case.values == "shut" and use.added and shape:
            # By lines of the last dim: the first entry alone, all, the first alone, some.
            lines = values.view(-1, *shape[-1:])
            lines[::2, :1], lines[1::4] = -torch.inf, -torch.inf
            lines[3::4][torch.rand(lines[3::4].shape, generator=generator) < 0.125] = -torch.inf
        if case.values == "shut" and use.compared and shape:
            values[..., 2::3] = torch.nan
        return values.to(dtype)
    integers = _integers(param, use, case)
    if isinstance(integers, list):
        labels = torch.tensor(integers)
        drawn = _runs if case.runs else torch.randint
        return labels[drawn(0, len(labels), shape, generator=generator)].to(dtype)
    low, high = integers.start, integers.stop
    if case.runs and use.position:
        values = torch.randint(low, high, shape, generator=generator)
        return (values.sort(-1).values if values.dim() else values).to(dtype)
    return (_runs if case.runs else torch.randint)(low, high, shape, generator=generator).to(dtype)


def _integers(param: Param, use: Usage, case: Case) -> range | list[int]:
    """What a param of integers or truth values is drawn from; no number for one of reals."""
    if DTYPES[param.dtype].is_floating_point:
        return []
    if param.dtype == "bool":
        return range(2)
    if use.position:
        return range(-1, max(case.q_len, case.kv_len) + 2)
    if use.index:
        return range(9)
    near = [constant + n for constant in use.constants for n in (-1, 0, 1)]
    return sorted({0, 1, 2, 3, *near})


def _runs(low: int, high: int, shape: tuple[int, ...], *, generator: torch.Generator) -> Tensor:
    """Whole numbers in [low, high), equal along most of the last dim: three short runs, then one of 7 tenths of it, so
    that a tile can lie inside; every other time the other way round."""
    if not shape or not shape[-1]:
        return torch.randint(low, high, shape, generator=generator)
    places = torch.arange(shape[-1]) / shape[-1]
    run = (places >= 0.05).int() + (places >= 0.15) + (places >= 0.3)
    first = torch.randint(low, high, (*shape[:-1], 1), generator=generator)
    # Neighbouring runs differ.
    values = low + (first - low + torch.tensor([2, 3, 1, 0]) * (high - low > 1)) % (high - low)
    values = values[..., run.long()].reshape(-1, shape[-1])
    values[1::2] = values[1::2].flip(-1)
    return values.reshape(shape)


def _mentions(node: Node, name: str) -> bool:
    """Whether a value of the param reaches the node's value other than through an index."""
    if isinstance(node, Read):
        return node.param == name
    return (isinstance(node, Name) and node.id == name) or any(_mentions(below, name) for below in children(node))


def _positional(node: Node) -> bool:
    """Whether a position reaches the node's value other than through an index."""
    if isinstance(node, Read):
        return False
    return (isinstance(node, Name) and node.id in _POSITIONS) or any(_positional(below) for below in children(node))


def _inner_first(variant: Variant, uses: Mapping[str, Usage]) -> Iterator[Param]:
    """The params, those that occur in another's indices before it."""
    waiting = list(variant.params)
    done: set[str] = set()
    while waiting:
        ready = [
            param
            for param in waiting
            if not any(
                _mentions(node, other.name)
                for indices in uses[param.name].reads
                for node in indices
                for other in waiting
                if other is not param
            )
        ]
        for param in ready or waiting[:1]:
            waiting.remove(param)
            done.add(param.name)
            yield param


def name_bounds(variant: Variant, case: Case) -> dict[str, Range]:
    """The least and the most that each name of an expression, but s, is in a case."""
    shift = case.kv_len - case.q_len if variant.align == "bottom_right" else 0
    return {
        "b": (0, max(case.batch - 1, 0)),
        "h": (0, case.heads - 1),
        "hk": (0, case.kv_heads - 1),
        "i": (0, max(case.q_len - 1, 0)),
        "j": (0, max(case.kv_len - 1, 0)),
        "q": (shift, max(case.q_len - 1, 0) + shift),
        "kv": (0, max(case.kv_len - 1, 0)),
        "q_len": (case.q_len, case.q_len),
        "kv_len": (case.kv_len, case.kv_len),
    }


def value_bounds(tensor: Tensor) -> Range:
    """The least and the most of a param's entries; of one that is no index, 0 and 0."""
    if tensor.numel() == 0 or tensor.is_floating_point():
        return (0, 0)
    return int(tensor.min()), int(tensor.max())


def bounds_of(node: Node, names: Mapping[str, Range]) -> Range:
    """Bounds of an integer expression, by interval arithmetic."""
    match node:
        case Number(value=value):
            return int(value), int(value)
        case Name(id=name):
            return names[name]
        case Read(param=name):
            low, high = names[name]
            return min(low, 0), max(high, 0)
        case Unary(x=x):
            low, high = bounds_of(x, names)
            return -high, -low
        case Conditional(yes=yes, no=no):
            (a, b), (c, d) = bounds_of(yes, names), bounds_of(no, names)
            return min(a, c), max(b, d)
        case Call(function="abs", args=(x,)):
            low, high = bounds_of(x, names)
            return 0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))
        case Call(function="min" | "max" as function, args=(x, y)):
            choose = min if function == "min" else max
            (a, b), (c, d) = bounds_of(x, names), bounds_of(y, names)
            return choose(a, c), choose(b, d)
        case Call(args=(x,)):
            return bounds_of(x, names)
        case Binary(op=op, left=left, right=right):
            return _binary_range(op, bounds_of(left, names), bounds_of(right, names))
        case _:
            return 0, 0


def _binary_range(op: str, left: Range, right: Range) -> Range:
    (a, b), (c, d) = left, right
    if op == "+":
        return a + c, b + d
    if op == "-":
        return a - d, b - c
    corners: tuple[int, ...]
    if op == "*":
        corners = (a * c, a * d, b * c, b * d)
    elif op == "//":
        divisors = [n for n in (c, d, -1, 1) if c <= n <= d and n] or [1]
        corners = tuple(n // m for n in (a, b) for m in divisors) + (0,) * (c <= 0 <= d)
    elif op == "%":
        return (min(c + 1, 0), max(d - 1, 0))
    else:
        corners = tuple(n**m for n in (a, b, 0) for m in (c, d) if m >= 0) or (0,)
    return min(corners), max(corners)
