"""The cases a variant is checked with: shapes from its tiles, and what its values and memory are to be like.

A case is only a description; :mod:`.inputs` draws its tensors. No torch here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

# What q, k and v hold.
#   normal   standard normal numbers
#   spread   queries whose logits range from a hundredth to hundreds, row by row
#   large    scores, exact in float32, around -LARGE, 0 or LARGE, row by row, of which many in a row weigh something
#   huge     values near the dtype's largest, gradients small: a sum of values overflows unless it is divided in time;
#            those of the last keys (and, of as many keys as queries, the first) are near its smallest, so that dividing
#            them as well shows
#   rising   every other eight rows see scores of RISE late, the rest early: what was largest so far, and how much it
#            grows, differs much between rows that a thread has at once
#   largest  values of every other column are the dtype's largest, of one sign in a column, and so is what comes out,
#            however weights are rounded: of scores as they are, those of all keys but one are rounded up, as far as can
#            be
#   swell    one sign, near the dtype's largest but for the last keys, where scores are 5 less: what comes after the
#            last keys weighs much more, though not so much that sums must be brought to another reference
#   drift    all near 1, so that sums grow steadily and accumulating them in few bits shows
#   uniform  q = k = 0: every admitted key weighs the same, so o prints the mask and lse is log(count)
#   peaked   each row's largest logit is at a key beside an edge of the mask, on either side of it
#   shut     normal numbers; real params that are added to the scores are -inf here and there and for whole rows, and
#            so is the first sink; the fourth is inf; of those that a mask compares, every third number is NaN
VALUES = ("normal", "spread", "large", "rising", "huge", "largest", "swell", "drift", "uniform", "peaked", "shut")

LARGE = 2.0**20
RISE = 288.0

# Which tensor holds something that is no number.
#   unseen   NaN in every row of K and V that no query may see: nothing may change
#   nan-key, inf-key, ...   in two neighbouring rows of that tensor ("upstream" is the gradient of o), in the first
#            column and, of one with NaN, the last (early ones: in others): it must reach exactly what sees the rows
#   inf-row  in one key and its value: where the score is -inf, a weight of 0 times Inf is NaN; a score that is capped
#            gives Inf where kernels can hold its weight (see compare.py)
POISONS = (
    "unseen",
    *(f"{what}-{tensor}" for tensor in ("key", "value", "query", "upstream") for what in ("nan", "inf")),
    "inf-row",
)


@dataclass(frozen=True)
class Case:
    """One call: sizes, values, memory.

    ``where`` is one of memory.PLACES, ``runs`` draws integer params in sorted runs (documents) rather than at
    random, ``lse_gradient`` gives lse a gradient too, ``few`` asks for the gradients of q, k and v alone, ``scale``
    (in units of 1/sqrt(head_dim)) is passed at the call, ``slack`` is added to the length of each param dim that may
    have any length, ``early`` puts the poison into the first rows, which most queries see, rather than late
    ones, ``dropout`` is dropout_p, of variants that have it.
    """

    name: str
    q_len: int
    kv_len: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    values: str = "normal"
    where: str = "plain"
    poison: str = ""
    threads: int = 1
    runs: bool = False
    lse_gradient: bool = False
    few: bool = False
    scale: float | None = None
    slack: int = 0
    early: bool = False
    dropout: float = 0.25


@dataclass(frozen=True)
class Tiling:
    """The distinct (query rows, keys) tile sizes of a variant's kernels, the forward's first.

    ``stages`` tiles are in flight at a time, 0 on a CPU. Kernels that are ``slow`` get smaller cases, and fewer;
    those with ``dropout`` have some of their own.
    """

    sizes: tuple[tuple[int, int], ...]
    stages: int = 0
    slow: bool = False
    dropout: bool = False

    @classmethod
    def of(cls, plan: Mapping[str, Any], *, slow: bool = False) -> Tiling:
        """That of a plan in a manifest."""
        kernels = [plan[direction] for direction in ("forward", "backward") if plan[direction]]
        sizes = tuple(dict.fromkeys((kernel["tile_q"], kernel["tile_kv"]) for kernel in kernels))
        return cls(
            sizes,
            max(kernel.get("stages", 0) for kernel in kernels),
            slow,
            plan.get("variant", {}).get("dropout", False),
        )


def cases(tiling: Tiling, level: str = "auto") -> tuple[Case, ...]:
    """The cases for kernels with these tiles, the most telling first; names are unique.

    ``level`` "auto" is what fits a build; "full" adds every pair of lengths around the tiles in every memory layout.
    """
    found = dict[str, Case]()
    for n, (rows, keys) in enumerate(tiling.sizes):
        suffix = f"@{rows}x{keys}" if n else ""
        for case in _around(rows, keys, tiling) if n == 0 else _edges(rows, keys):
            found[case.name + suffix] = replace(case, name=case.name + suffix)
    if level == "full":
        for rows, keys in tiling.sizes:
            for case in _grid(rows, keys, tiling.slow):
                found[case.name] = case
    return tuple(found.values())


def aimed(q_len: int, kv_len: int, values: str, runs: bool = False) -> Case:
    """A case for telling a mutant apart, with a name that :func:`named` reads."""
    name = f"aimed-{q_len}x{kv_len}-{values}" + "-runs" * runs
    return Case(name, q_len, kv_len, heads=2, kv_heads=1, values=values, runs=runs)


def named(name: str, tiling: Tiling) -> Case:
    """The case of that name, also an aimed one. Raises KeyError, listing the names, if there is none."""
    match = re.fullmatch(r"aimed-(\d+)x(\d+)-(\w+?)(-runs)?", name)
    if match and match[3] in VALUES:
        return aimed(int(match[1]), int(match[2]), match[3], bool(match[4]))
    fast = replace(tiling, slow=False)
    known = {case.name: case for each in (fast, tiling) for case in cases(each, "full")}
    if name not in known:
        raise KeyError(f"no case named {name!r}; there are: {', '.join(case.name for case in cases(tiling))}")
    return known[name]


def _around(a: int, b: int, tiling: Tiling) -> Iterator[Case]:
    """For tiles of ``a`` query rows and ``b`` keys: edges, sizes, values and poisons."""
    many = 12 if tiling.slow else 100  # tiles: sums over them show what is lost in each
    keys = 36 if tiling.slow else many  # a warp looks at 32 tiles of keys at a time
    yield Case("several-tiles", 2 * a + 3, 3 * b + 5, 2, 2, 1, threads=3, runs=True, lse_gradient=True)
    yield from _edges(a, b)
    if tiling.stages:  # tiles come round to each place twice, and one is left over
        yield Case("ring", a // 2 + 1, 2 * tiling.stages * b + 1, 1, 2, 1, runs=True)
    yield Case("uniform", a + 1, 2 * b + 1, 2, 2, 1, values="uniform", runs=True)
    yield Case("peaked", a + 7, 2 * b + 7, 1, 4, 2, values="peaked", lse_gradient=True, runs=True)
    yield Case("spread", a + 5, 2 * b + 3, 1, 2, 2, values="spread", where="slice", lse_gradient=True)
    yield Case("rising", a + 5, 2 * b + 3, 1, 2, 1, values="rising")
    yield Case("large", a + 21, 2 * b + 9, 1, 4, 2, values="large", where="fence", runs=True, lse_gradient=True)
    yield Case("shut", a // 2 + 1, 2 * b + 5, 1, 4, 2, values="shut", runs=True)
    yield Case("shut-more-queries", b + 3, b // 2 + 3, 1, 2, 1, values="shut")
    # Few keys: what sums of more lose in float32 is more than what is looked for.
    yield Case("largest", a // 2 + 3, 8, 1, 2, 2, values="largest")
    yield Case("swell", 1, 3 * b + 9, 1, 2, 1, values="swell")
    yield Case("huge", 5, b + 9, 1, 4, 2, values="huge", where="fence")
    # Two heads in one work item, each of several blocks of rows, the first of which see only small values.
    yield Case("huge-square", max(a // 2 - 1, 3), max(a // 2 - 1, 3), 1, 2, 1, values="huge")
    yield Case("many-tiles", 2, keys * b + 3, values="drift", runs=True, lse_gradient=True)
    yield Case("many-rows", many * a + 3, 2, values="drift", lse_gradient=True)
    yield Case("more-queries", b // 2 + a + 3, b // 2 + 1, 2, 6, 2, where="permuted", runs=True)
    yield Case("one-query", 1, 2 * b + 1, 2, 6, 1, where="slice", threads=3)
    yield Case("one-query-whole-tiles", 1, 2 * b, 1, 2, 1)
    # Under a narrow window, no tile is seen whole but by one row alone that has few keys.
    yield Case("one-query-short", 1, 64, 1, 2, 1)
    yield Case("one-key", a + 1, 1, 2, 1, 1, where="fence", lse_gradient=True)
    yield Case("one-pair", 1, 1, 1, 2, 1)
    yield Case("negative-scale", a + 3, b + 3, 1, 2, 2, where="gaps", scale=-0.7)
    yield Case("zero-scale", a // 2 + 1, b // 2 + 1, 1, 2, 1, scale=0.0)
    if tiling.dropout:
        yield Case("drops-nothing", a + 3, b + 3, 2, 4, 2, lse_gradient=True, runs=True, dropout=0.0)
        yield Case("drops-half", a + 9, b + 9, 2, 4, 2, values="uniform", where="offset", runs=True, dropout=0.5)
        yield Case("drops-most", a + 5, 2 * b + 5, 1, 2, 1, lse_gradient=True, dropout=0.96875)
        yield Case("drops-all", a // 2 + 1, b // 2 + 1, 1, 2, 1, dropout=1.0 - 2.0**-18)
    yield Case("few-gradients", a // 2 + 1, b + 1, 1, 2, 1, few=True)
    yield Case("broadcast", a // 2 + 2, b // 2 + 2, 2, 4, 2, where="broadcast", runs=True)
    for where in ("shifted", "padded", "spaced", "strided"):
        yield Case(where, 4, b // 2 // 2 * 2 + 2, 2, 2, 1, where=where)
    yield Case("no-keys", 3, 0, 2, 2, 1)
    yield Case("no-queries", 0, 3, 2, 2, 1)
    yield Case("no-batch", 3, 3, 0, 2, 1)
    for poison in POISONS:
        # NaN in a tensor that lies otherwise than the rest, Inf in one that ends where memory does.
        where = "gaps" if poison.startswith("nan-") else "fence" if poison == "inf-key" else "plain"
        runs = poison != "nan-key"
        kv_len = 4 * b + 3 if poison == "unseen" else 2 * b + 3  # so that a tile of a document is unseen as a whole
        yield Case(poison, a // 2 + 3, kv_len, 1, 2, 1, where=where, poison=poison, runs=runs)
    for poison in ("nan-value", "nan-upstream", "inf-row"):
        yield Case(f"{poison}-early", a // 2 + 3, 2 * b + 3, 1, 2, 1, poison=poison, runs=True, early=True)
    # The last key of a tile and the first of the next, which Inf added once more without weight would make NaN.
    yield Case("inf-value-between", a // 2 + 3, 2 * b + 4, 1, 2, 1, poison="inf-value", runs=True)


def _edges(a: int, b: int) -> Iterator[Case]:
    """Lengths that are a tile, one less and one more."""
    yield Case("tile", a, b, 1, 4, 2, where="fence", scale=0.7, slack=-2)
    yield Case("tile-nan", a, 3, 1, 1, 1, poison="nan-query")
    yield Case("tile-plus-1", a + 1, b + 1, 1, 3, 3, where="offset", slack=3)
    yield Case("tile-minus-1", max(a - 1, 1), max(b - 1, 1), 2, 1, 1, where="gaps", runs=True, lse_gradient=True)


def _grid(a: int, b: int, slow: bool) -> Iterator[Case]:
    """Every pair of lengths around the tiles; memory and heads take turns, and so do values where kernels are slow."""
    rows, keys = {1, a - 1, a, a + 1, 2 * a + 1, 3 * a} - {0}, {1, b - 1, b, b + 1, 3 * b + 1} - {0}
    places = ("plain", "fence", "offset", "gaps", "permuted", "slice")
    groups = ((1, 1), (4, 2), (3, 1), (2, 2))
    kinds = [values for values in VALUES if values != "largest"]  # that takes few keys
    for n, (q_len, kv_len) in enumerate(product(sorted(rows), sorted(keys))):
        for m, values in enumerate(kinds):
            if slow and (n + m) % len(kinds):
                continue
            heads, kv_heads = groups[(n + m) % len(groups)]
            yield Case(
                f"q{q_len}-kv{kv_len}-{values}",
                q_len,
                kv_len,
                1 + (n + m) % 2,
                heads,
                kv_heads,
                values,
                places[(n + 2 * m) % len(places)],
                threads=1 + n % 3,
                runs=bool((n + m) % 2),
                lse_gradient=bool(n % 2),
                scale=0.7 if n % 3 == 0 else None,
            )
