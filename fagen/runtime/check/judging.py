"""A deviation in words that point at a loop of the kernel."""

from __future__ import annotations

from torch import Tensor

from .cases import Case, Tiling
from .compare import Expected
from .report import Failure
from .rule import Deviation


def describe(case: Case, worst: Deviation, expected: Expected, got: Tensor, tiling: Tiling) -> Failure:
    """The failure that ``worst``, of the output ``got``, is."""
    layout = expected.variant.layout
    if worst.measure == "shape":
        want, base = expected.want[worst.output], expected.base[worst.output]
        message = f"{worst.output} is {got.dtype} {list(got.shape)}, should be {base.dtype} {list(want.shape)}"
        return Failure(case.name, message, worst.output, worst.measure)
    message = f"{name_element(worst, layout)} is {worst.got:.6g}, should be {worst.want:.6g}"
    if worst.measure in ("rms", "max"):
        where = "its row is off by" if worst.measure == "rms" else "which is"
        message += f" ± {worst.allowed:.2g}; {where} {worst.ratio:.3g} times what is allowed"
    place = relative_to_tiles(worst, layout, case, tiling)
    return Failure(case.name, message, place=place, **vars(worst))


def name_element(deviation: Deviation, layout: str) -> str:
    """As ``o[b=0, i=65, h=1, d=3]``."""
    index = deviation.index
    keys = "j" if deviation.output in ("dk", "dv") else "i"
    head = "hk" if keys == "j" else "h"
    if deviation.output == "lse":
        names: tuple[str, ...] = ("b", "h", "i")
    elif deviation.output in ("o", "dq", "dk", "dv"):
        names = ("b", keys, head, "d") if layout == "bshd" else ("b", head, keys, "d")
    else:
        names = ("",) * len(index)
    parts = [f"{name}={n}" if name else str(n) for name, n in zip(names, index, strict=True)]
    return f"{deviation.output}[{', '.join(parts)}]"


def relative_to_tiles(deviation: Deviation, layout: str, case: Case, tiling: Tiling) -> str:
    """As ``row 65 is row 1 of 2 in query tile 1 (tiles of 64); 130 keys are 2 tiles of 64 and 2 more``."""
    index = deviation.index
    rows, keys = tiling.sizes[-1 if deviation.output not in ("o", "lse") else 0]
    axis = 2 if deviation.output == "lse" or layout == "bhsd" else 1
    parts = []
    if deviation.output in ("o", "lse", "dq") and index:
        parts.append(_of_tile("row", index[axis], rows, case.q_len, "query"))
    elif deviation.output in ("dk", "dv") and index:
        parts.append(_of_tile("key", index[axis], keys, case.kv_len, "key"))
    if deviation.output in ("o", "lse", "dq"):
        parts.append(_in_tiles(case.kv_len, keys, "keys"))
    elif deviation.output in ("dk", "dv"):
        parts.append(_in_tiles(case.q_len, rows, "rows"))
    return "; ".join(parts)


def _of_tile(what: str, number: int, tile: int, length: int, kind: str) -> str:
    inside = min(tile, length - number // tile * tile)
    return f"{what} {number} is number {number % tile} of {inside} in {kind} tile {number // tile} (tiles of {tile})"


def _in_tiles(length: int, tile: int, what: str) -> str:
    full, rest = divmod(length, tile)
    return f"{length} {what} are {full} full tiles of {tile}" + (f" and {rest} more" if rest else "")
