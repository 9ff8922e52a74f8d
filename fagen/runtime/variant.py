"""One variant of a spec: everything that decides what its kernel computes. No torch here.

The compiler passes these from spec to plan; a published module reads them back from its manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What torch calls the dtypes of params; the first three are also those of q, k, v and o.
TORCH_DTYPES = {
    "f32": "float32",
    "bf16": "bfloat16",
    "f16": "float16",
    "i32": "int32",
    "i64": "int64",
    "bool": "bool",
}
PARAM_DTYPES = tuple(TORCH_DTYPES)
DTYPES = PARAM_DTYPES[:3]


@dataclass(frozen=True)
class Param:
    """A run-time input that expressions may read.

    ``shape`` holds extents: "B", "H", "Hk", "Sq", "Skv", "n" (any length) or an integer; () is a scalar.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]
    grad: bool = False


@dataclass(frozen=True)
class Expression:
    """A mask or a score change.

    ``text`` is what the user wrote; ``resolved`` means the same with constants substituted and macros expanded,
    so it can be parsed knowing only the variant's params. ``line`` and ``column`` (from 1) are places in the spec.
    """

    text: str
    resolved: str
    line: int = 0
    column: int = 0


@dataclass(frozen=True)
class Tiles:
    """Tile sizes the user insists on; None leaves the choice to the planner.

    ``q`` query rows and ``kv`` keys a tile, of which ``stages`` are in flight; ``turns`` says when a warpgroup lets the
    next one start its products. ``measured`` is empty for what a spec says, and for what tuning found says where.
    """

    q: int | None = None
    kv: int | None = None
    stages: int | None = None
    turns: str | None = None
    measured: str = ""

    def why(self, key: str, of: str = "tiles") -> str:
        """The reason of a choice that follows ``key`` of these, which the spec calls ``of``."""
        return self.measured or f"the spec's {of}.{key}"


@dataclass(frozen=True)
class Variant:
    """One attention: ``name`` is its spec entry, C++ namespace, op, test id and bench row.

    ``scale`` None means 1/sqrt(head_dim); ``mask`` None admits every pair; ``score`` None is the identity.
    ``params`` are exactly those the expressions read, in the order the spec declares them.
    ``dropout`` says whether calls may drop weights. ``tiles`` are forward's, on a CPU of both directions;
    ``backward_tiles``, which have no turns, are those of backward kernels for cards. ``line`` and ``column`` are the
    variant's place in the spec.
    """

    name: str
    head_dim: int
    value_dim: int
    dtype: str = "bf16"
    layout: str = "bshd"
    backward: bool = True
    scale: float | None = None
    align: str = "bottom_right"
    mask: Expression | None = None
    score: Expression | None = None
    sink: bool = False
    params: tuple[Param, ...] = ()
    nonfinite: str = "contain"
    deterministic: bool = False
    dropout: bool = False
    isa: str = "native"
    tiles: Tiles = Tiles()
    backward_tiles: Tiles = Tiles()
    line: int = 0
    column: int = 0

    @property
    def directions(self) -> tuple[str, ...]:
        """What is built: one unit each."""
        return ("forward", "backward") if self.backward else ("forward",)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars; :meth:`from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Variant:
        """The variant a manifest holds."""
        values = dict(data)
        for key in ("mask", "score"):
            if values.get(key) is not None:
                values[key] = Expression(**values[key])
        for key in ("tiles", "backward_tiles"):
            values[key] = Tiles(**values.get(key, {}))
        values["params"] = tuple(Param(**{**param, "shape": tuple(param["shape"])}) for param in values["params"])
        return cls(**values)
