"""What the mma schedule's backward kernel chooses, and what its templates print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from ...expr import KernelCode
from ...runtime.variant import Tiles, Variant
from ...target import Device, Target
from ..model import Plan
from ..pieces import admission, body
from .forward import row_bytes
from .slopes import exact_params, slopes, weights

_NOTE = 16  # bytes of a query row's notes: kNoteBytes of cuda/query_notes.h
_HELD = 32  # of a block's keys, their heads and the number of its work
_MOST_SUMS = 128  # registers of a thread that sums of dK and dV may take: as many are left for what a tile needs
_MOST_SCORES = 64  # and its weights and slopes at a time; half of that where each pair adds to a param's gradient
_MOST_OF_BOTH, _MOST_BESIDE_OTHERS = 192, 160  # of both; beside what else registers are for, some spilled with 192
_USUAL_ROWS = (64, 32)
KEYS, ROWS, STAGES = (128, 64, 32, 16), (128, *_USUAL_ROWS), (2, 1)  # that there are


@dataclass(frozen=True)
class Backward:
    """Sizes of the backward kernels; see the constants at the top of rendered ones.

    A block of ``threads`` has ``tile_kv`` keys and takes them against ``tile_q`` query rows at a time, of which
    ``stages`` tiles are in shared memory, ``shared_bytes`` in all (``prepare_bytes`` while notes on query rows are
    made). Its warps are ``row_warps`` along the keys by ``column_warps``. ``head_width`` and ``value_width`` are the
    head dims, padded. ``turns`` says whether blocks add to dQ one after the other, ``sums`` of each param with a
    gradient how it is summed, "atomic" or "exact"; ``sink`` whether one has a gradient.
    """

    tile_q: int
    tile_kv: int
    row_warps: int
    column_warps: int
    stages: int
    threads: int
    head_width: int
    value_width: int
    shared_bytes: int
    prepare_bytes: int
    turns: bool
    sums: Mapping[str, str]
    sink: bool
    optimize: str

    @property
    def kernels(self) -> Mapping[str, tuple[int, int]]:
        """Threads and shared memory of a block, by what a kernel is for."""
        found = {
            "prepare": (self.threads, self.prepare_bytes),
            "kernel": (self.threads, self.shared_bytes),
            "finish": (self.threads, 0),
        }
        if self.sink:
            found["sink"] = (self.threads, 0)
        if "exact" in self.sums.values():
            found["round"] = (self.threads, 0)
        return found

    @property
    def note_bytes(self) -> int:
        """Of a query row."""
        return _NOTE

    @property
    def sum_bytes(self) -> int:
        """Of a query row's sums of dQ."""
        return self.head_width * 4

    @property
    def boxes(self) -> tuple[int, int]:
        """Of rows of Q and of keys: it takes no tensor maps."""
        return 0, 0

    @property
    def word_bytes(self) -> int:
        """Of tiles that a kernel before it would find: there is none."""
        return 0

    @property
    def by_head(self) -> bool:
        """Whether those would be each head's own."""
        return False


@dataclass(frozen=True)
class _Tiles:
    """What is chosen among."""

    keys: int
    rows: int
    stages: int
    head: int  # widths
    value: int

    @property
    def row_warps(self) -> int:
        return min(self.keys // 16, 4)

    @property
    def sums(self) -> int:
        """Registers of a thread."""
        return self.keys // self.row_warps * (self.head + self.value) // 32 // _COLUMN_WARPS

    @property
    def scores(self) -> int:
        return 2 * self.keys // self.row_warps * self.rows // 32 // _COLUMN_WARPS

    @property
    def shared(self) -> int:
        """Bytes, but for a mask's."""
        head, value, pair = row_bytes(self.head), row_bytes(self.value), row_bytes(self.rows)
        stage = self.rows * (head + value + _NOTE)
        return self.keys * (head + value) + self.stages * stage + 2 * self.keys * pair + _HELD

    @property
    def threads(self) -> int:
        return 32 * self.row_warps * _COLUMN_WARPS

    @property
    def prepare(self) -> int:
        sums = self.rows * row_bytes(self.head) + self.keys * row_bytes(self.head) + self.row_warps * self.rows * 4
        return max(2 * self.rows * row_bytes(self.value), sums) + 2 * self.rows * 4


_COLUMN_WARPS = 2
_WIDTH = 16 * _COLUMN_WARPS  # columns of dK and dV come in as many


def choose_backward(variant: Variant, target: Target, code: KernelCode) -> tuple[Backward, dict[str, str]]:
    """The sizes for a variant, and a reason for each."""
    device = target.device
    assert device is not None
    masked = variant.mask is not None
    wanted = variant.backward_tiles
    tiles = _usual(variant, device, code)
    head, value = tiles.head, tiles.value
    if wanted != Tiles():
        tiles = _wanted(wanted, tiles, variant, device, code)
    exact = {variant.params[index].name for index in exact_params(variant, code)}
    summed = {variant.params[grad.param_index].name for grad in code.param_grads}
    sums = {
        param.name: "exact" if param.name in exact else "atomic" for param in variant.params if param.name in summed
    }
    warps = tiles.row_warps * _COLUMN_WARPS
    why = {
        "tile_kv": f"the most keys whose sums of dK and dV, {tiles.sums} registers of a thread, leave room",
        "tile_q": f"the most query rows beside them: {tiles.scores} registers of weights and slopes, and shared memory",
        "stages": "the next tile of q and dO arrives while one is multiplied"
        if tiles.stages > 1
        else f"one: shared memory of {device.shared_per_block >> 10} KiB has no room for two tiles of q and dO",
        "row_warps": "16 keys or 32 each, so that what is read of q and dO is used by as many keys as fit registers",
        "column_warps": "halves of the columns of dK and dV: what is read of q and dO serves more keys",
        "threads": f"{warps} warps",
        "head_width": "16 columns of each half of the warps at a time",
        "value_width": "16 columns of each half of the warps at a time",
        "shared_bytes": f"{tiles.keys} rows of K and V, {tiles.stages} × {tiles.rows} of q and dO, pairs twice",
        "prepare_bytes": "tiles of o and dO, or of q and keys",
        "turns": "`deterministic`: blocks of keys add to dQ in their order"
        if variant.deterministic
        else "blocks add to dQ as they come: without an order, none waits",
        "sink": "the spec's",
        "sums": "by how their reads are indexed",
        "optimize": "the compiler's usual level",
    }
    for key, name in (("q", "tile_q"), ("kv", "tile_kv"), ("stages", "stages")):
        if getattr(wanted, key) is not None:
            why[name] = wanted.why(key, "backward_tiles")
    why |= {f"sums.{name}": _sum_why(how, variant) for name, how in sums.items()}
    chosen = Backward(
        tile_q=tiles.rows,
        tile_kv=tiles.keys,
        row_warps=tiles.row_warps,
        column_warps=_COLUMN_WARPS,
        stages=tiles.stages,
        threads=tiles.threads,
        head_width=head,
        value_width=value,
        shared_bytes=tiles.shared + _mask_bytes(tiles, masked),
        prepare_bytes=tiles.prepare,
        turns=variant.deterministic,
        sums=sums,
        sink=variant.sink,
        optimize="-O3",
    )
    return chosen, why


def _sum_why(how: str, variant: Variant) -> str:
    if how == "exact":
        return "several threads add to an element, and `deterministic` asks for a sum that has no order"
    return "one thread adds to an element" if variant.deterministic else "float32 numbers, as threads come"


def _mask_bytes(tiles: _Tiles, masked: bool) -> int:
    return 16 * tiles.row_warps * _COLUMN_WARPS if masked else 0  # Tiles<kWarps>::kBytes of cuda/tiles.h


def _fitting(head: int, value: int, variant: Variant, device: Device, code: KernelCode) -> Iterator[_Tiles]:
    """Those that registers and shared memory have room for, the best first: many keys, which queries are read for once;
    then two stages rather than many query rows."""
    for keys, rows, stages in product(KEYS, _USUAL_ROWS, STAGES):
        tiles = _Tiles(keys, rows, stages, head, value)
        if _shared(tiles, variant) <= device.shared_per_block and not too_many(tiles.sums, tiles.scores, variant, code):
            yield tiles


def _usual(variant: Variant, device: Device, code: KernelCode) -> _Tiles:
    head, value = (-(-dim // _WIDTH) * _WIDTH for dim in (variant.head_dim, variant.value_dim))
    return next(_fitting(head, value, variant, device, code))


def most_keys(variant: Variant, device: Device, code: KernelCode) -> int:
    """Of a block of threads, that registers and shared memory have room for."""
    return _usual(variant, device, code).keys


def _shared(tiles: _Tiles, variant: Variant) -> int:
    return max(tiles.shared + _mask_bytes(tiles, variant.mask is not None), tiles.prepare)


def too_many(sums: int, scores: int, variant: Variant, code: KernelCode) -> str:
    """Why a thread that has so many registers of sums, and of weights and slopes, would spill; "" if it would not."""
    pairs_add = any(grad.kind == "pair" for grad in code.param_grads)
    most_scores = _MOST_SCORES // 2 if pairs_add else _MOST_SCORES
    padded = bool(variant.head_dim % _WIDTH or variant.value_dim % _WIDTH)
    others = bool(code.declarations) or variant.dropout or variant.deterministic or padded
    most_of_both = _MOST_BESIDE_OTHERS if others else _MOST_OF_BOTH
    if sums > _MOST_SUMS:
        return f"sums of dK and dV take {sums} registers of a thread, more than {_MOST_SUMS}: it would spill"
    if scores > most_scores:
        return f"weights and slopes take {scores} registers of a thread, more than {most_scores}: it would spill"
    if sums + scores > most_of_both:
        return f"sums, weights and slopes take {sums + scores} registers of a thread, more than {most_of_both}"
    return ""


def _wanted(wanted: Tiles, usual: _Tiles, variant: Variant, device: Device, code: KernelCode) -> _Tiles:
    """Those with the sizes that are asked for: what fits as the others do, or else has just room. With too little of
    it they are the largest."""
    found = [
        _Tiles(keys, rows, stages, usual.head, usual.value)
        for keys, rows, stages in product(KEYS, ROWS, STAGES)
        if wanted.kv in (None, keys) and wanted.q in (None, rows) and wanted.stages in (None, stages)
    ]
    # Usual rows come before others where they are left open.
    found.sort(key=lambda tiles: tiles.rows not in _USUAL_ROWS)
    possible = [tiles for tiles in found if tiles.rows <= tiles.threads]
    room = [tiles for tiles in possible if _shared(tiles, variant) <= device.shared_per_block]
    fitting = [tiles for tiles in room if not too_many(tiles.sums, tiles.scores, variant, code)]
    return next(iter((*fitting, *room, *possible, *found)))


def registers_of(backward: Backward) -> tuple[int, int]:
    """Those of a thread that sums of dK and dV take, and weights and slopes."""
    lanes = 32 * backward.row_warps * backward.column_warps
    sums = backward.tile_kv * (backward.head_width + backward.value_width) // lanes
    return sums, 2 * backward.tile_kv * backward.tile_q // lanes


def backward_names(plan: Plan) -> Mapping[str, object]:
    """What the templates of the backward kernels print besides the names that both directions share."""
    variant, code, backward = plan.variant, plan.code, plan.backward
    assert isinstance(backward, Backward)
    masked = variant.mask is not None
    exact = exact_params(variant, code)
    # Where a score is q · k alone, its scale is part of the exponent's unit: not beside a sink, which has another.
    scored = variant.score is not None or variant.sink
    of_pairs, of_weights = slopes(code, variant, scored=scored), weights(code, variant, scored=scored)
    exponent = "__fsub_rn({}, note.lse) * kLog2e" if scored else "fmaf(weight, p.scale * kLog2e, -note.lse)"
    return {
        "params": "BackwardParams",
        "headers": (
            *(("cuda/array.h",) if code.declarations else ()),
            *(("cuda/exact_gradient.h",) if exact else ()),
            *(("cuda/gradient.h",) if code.param_grads else ()),
            *(("cuda/backward_nonfinite.h",) if variant.nonfinite == "contain" else ()),
            *(("cuda/key_turns.h",) if backward.turns else ()),
            *(("cuda/sink_gradient.h",) if variant.sink else ()),
            *(("cuda/dropout.h",) if variant.dropout else ()),
        ),
        "contains": variant.nonfinite == "contain",
        "value_factor": "p.dropout.factor" if variant.dropout else "1.0f",  # of sums of dV
        "tile_q": backward.tile_q,
        "tile_kv": backward.tile_kv,
        "row_warps": backward.row_warps,
        "column_warps": backward.column_warps,
        "stages": backward.stages,
        "next_stage": "stage ^ 1" if backward.stages > 1 else "0",
        "head_width": backward.head_width,
        "value_width": backward.value_width,
        "shared_bytes": backward.shared_bytes,
        "prepare_bytes": backward.prepare_bytes,
        "tiles_bytes": " + Tiles<kWarps>::kBytes" if masked else "",
        "deterministic": backward.turns,
        "rounded": exact,
        "noted_lse": "lse" if scored else "lse * kLog2e",
        "slopes": of_pairs,
        "slope_grads": bool(of_pairs.grads),
        "exponent": exponent.format(of_pairs.x),
        "row_weights": of_weights,
        "weight_exponent": exponent.format(of_weights.x),
        "weighed": f"({of_weights.allowed}) && " if masked else "",
        **admission(code, variant),
        "asks_by_pair": False,
        "tile_test": body(code, variant, code.tile_test),
        "query_ranges": body(code, variant, code.query_ranges),
    }
