"""Who adds up the gradient of a param: decided by how the expressions read it."""

from __future__ import annotations

from dataclasses import dataclass

from ...expr import KernelCode, ParamGrad
from ...runtime.variant import Param, Variant

# How an axis is indexed, as cpu/param_gradient.h calls it.
_BY = {"b": "By::kBatch", "h": "By::kHead", "hk": "By::kKeyHead", "": "By::kAny"}
_RANK = 4


@dataclass(frozen=True)
class ParamSum:
    """One param with a gradient.

    ``mode`` is one of

    - "direct": no two work items add to the same entry, so each adds to the gradient itself;
    - "part": each item adds up a part of its own, and the parts are added in the order of the items;
    - "by batch": a part would be as large as the scores, so items add to the gradient itself, and those of another
      batch element wait for each other;
    - "serial": the same, but any two items may meet, so they run one after the other.

    A part is added up in ``type``; ``by`` says how its axes are indexed, one after the other.
    """

    name: str
    index: int
    mode: str
    why: str
    type: str
    by: str

    @property
    def part(self) -> str:
        """The C++ function that makes an item's part."""
        return f"{self.name}_part_of"


@dataclass(frozen=True)
class Sums:
    """All params with a gradient."""

    params: tuple[ParamSum, ...]

    @property
    def parts(self) -> tuple[ParamSum, ...]:
        """Those of which each item adds up a part."""
        return tuple(each for each in self.params if each.mode == "part")

    @property
    def direct(self) -> tuple[int, ...]:
        """The indexes of those that items add to themselves."""
        return tuple(each.index for each in self.params if each.mode != "part")

    @property
    def apart(self) -> str:
        """How far apart, in the order of items, those are that may add to the same entry; "" if none may."""
        modes = {each.mode for each in self.params}
        # Items go through the heads of a batch element, then through the batch.
        return "1" if "serial" in modes else "p.shape.kv_heads" if "by batch" in modes else ""


def param_sums(variant: Variant, code: KernelCode) -> Sums:
    """How the gradients of a variant's params are added up."""
    found = []
    for index, param in enumerate(variant.params):
        reads = tuple(grad for grad in code.param_grads if grad.param_index == index)
        if reads:
            found.append(_param_sum(param, index, reads))
    return Sums(tuple(found))


def _param_sum(param: Param, index: int, reads: tuple[ParamGrad, ...]) -> ParamSum:
    mode, why = _mode(param, reads)
    # One number for many rows is a sum of very many: float64 keeps what float32 would round away.
    whole_rows = all(read.kind == "row" for read in reads)
    by = [_BY[_axis(reads, axis)] for axis in range(len(param.shape))]
    return ParamSum(
        name=param.name,
        index=index,
        mode=mode,
        why=why,
        type="double" if mode == "part" and whole_rows else "float",
        by=", ".join(by + [_BY[""]] * (_RANK - len(by))),
    )


def _axis(reads: tuple[ParamGrad, ...], axis: int) -> str:
    """The name among b, h, hk that indexes an axis in every read, "" where none does."""
    names = {read.axes[axis] for read in reads}
    return names.pop() if len(names) == 1 else ""


def _mode(param: Param, reads: tuple[ParamGrad, ...]) -> tuple[str, str]:
    owner = set(reads[0].owner)
    if len(reads) == 1 and {"b", "j"} <= owner and owner & {"h", "hk"}:
        return "direct", "read at b, at the head and at the key: no two work items share an entry"
    open_axes = [
        extent for axis, extent in enumerate(param.shape) if isinstance(extent, str) and not _axis(reads, axis)
    ]
    if len(open_axes) <= 1:
        return "part", "many work items add to an entry, and the entries that one adds to are few"
    why = f"many work items add to an entry, and the entries that one adds to are {' × '.join(open_axes)}"
    return "by batch" if len(reads) == 1 and "j" in owner and owner & {"h", "hk"} else "serial", why
