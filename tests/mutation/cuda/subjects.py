"""The kernels that are mutated: few and small, but together they use every part of the templates."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cpu"))

from kernels import ForwardParams, Kernel, variant  # noqa: E402

from fagen.emulate import EmulationError  # noqa: E402
from fagen.emulate.compile import Loaded  # noqa: E402
from fagen.emulate.launch import Memory  # noqa: E402
from fagen.emulate.launch import run as launch  # noqa: E402
from fagen.emulate.tensormap import encode_tiled  # noqa: E402
from fagen.plan import Plan, plan  # noqa: E402
from fagen.plan.mma.forward import Forward  # noqa: E402
from fagen.plan.wgmma.forward import Forward as WarpgroupForward  # noqa: E402
from fagen.render import Source, render  # noqa: E402
from fagen.runtime.check.cases import Case, Tiling, cases  # noqa: E402
from fagen.runtime.check.inputs import Inputs  # noqa: E402
from fagen.runtime.variant import Param, Tiles  # noqa: E402

from ..subject import Checked  # noqa: E402

SECONDS = 8.0  # a launch takes a small part of one: one that runs longer hangs
SHUT_DIAGONALS = "shut-diagonals"
MULTIPROCESSORS = 3  # as fagen's host code has it of the emulator: few, so that each takes several blocks of rows


@dataclass(frozen=True)
class Subject(Checked):
    """A variant whose kernel for ``target`` is mutated. Tiles are small, so that few numbers cross many tiles.

    ``more`` are cases besides the check's, of lengths that tell what its mask makes of them. Of those named
    SHUT_DIAGONALS, ``shut`` changes the params.
    """

    target: str
    more: tuple[Case, ...] = ()
    shut: Callable[[dict[str, Tensor]], None] | None = None

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """What the check has for it, the most telling first, and those of its own."""
        return (*cases(self.tiling), *self.more)

    def drawn(self, case: Case) -> Inputs:
        """A case's inputs."""
        inputs = super().drawn(case)
        if self.shut is not None and case.name == SHUT_DIAGONALS:
            self.shut(inputs.params)
            for memory in inputs.guarded.values():
                memory.before.copy_(memory.base)  # as it is handed out
        return inputs

    @cached_property
    def plan(self) -> Plan:
        """How it is built here."""
        return plan(self.variant, self.target, spec="mutation")

    @cached_property
    def source(self) -> Source:
        """Its rendered kernel; of what is done by the size of a card's cache, for one that holds a few keys."""
        (source,) = render(self.plan)
        return replace(source, text=re.sub(r"(?<= kCache = )\d+", "10000", source.text))

    @property
    def tiling(self) -> Tiling:
        """Its tiles."""
        return Tiling.of(self.plan.to_json(), slow=True)

    @property
    def swizzled(self) -> bool:
        """Whether no access to shared memory has conflicts of banks. In rows that are padded, only those of products
        have none."""
        return self.variant.head_dim % 64 == 0 and self.variant.value_dim % 64 == 0


class Called:
    """The kernels of an emulated program as a variant's public function, as the check calls it.

    ``tiles`` are, of each count that was asked for, those without and with the mask.
    """

    def __init__(self, subject: Subject, program: Loaded):
        self.variant = subject.variant
        chosen = subject.plan.forward
        assert isinstance(chosen, Forward | WarpgroupForward)
        self.plan = chosen
        self.program = program
        self.completions, self.seed = "latest", 0
        self.banks = False  # whether conflicts are counted; those of the last launch, by line of the PTX
        self.conflicts: dict[int, int] = {}
        self.tiles: list[tuple[int, int]] = []
        self.ops = self
        # What makes a struct of tensors.
        self.packer = Kernel.__new__(Kernel)
        self.packer.variant = subject.variant

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        return_lse: bool = True,
        out: Tensor | None = None,
        sink: Tensor | None = None,
        **params: Tensor,
    ) -> tuple[Tensor, Tensor]:
        if out is None:
            out = torch.full((*q.shape[:3], self.variant.value_dim), torch.nan, dtype=q.dtype)
        if isinstance(self.plan, WarpgroupForward):
            q, k, v = (_for_boxes(tensor) for tensor in (q, k, v))
        sink = sink if sink is None else sink.contiguous()
        p, _keep = self.packer._params(q, k, v, out, scale, sink, params, 1)
        lse = torch.full((p.shape.batch, p.shape.heads, p.shape.q_len), torch.nan)
        p.lse = lse.data_ptr()
        memory = [_memory(name, t, False) for name, t in (("q", q), ("k", k), ("v", v))]
        memory += [_memory("o", out, True), _memory("lse", lse, True)]
        memory += [] if sink is None else [_memory("sink", sink, False)]
        sizes = self.plan.threads, self.plan.shared_bytes
        blocks = self._blocks(p)
        if isinstance(self.plan, WarpgroupForward):
            if self.plan.word_bytes:
                memory += self._find_tiles(p, params)
            drawn = torch.zeros(1, dtype=torch.int32)
            if self.plan.draws and blocks > MULTIPROCESSORS:
                p.drawn = drawn.data_ptr()
                memory.append(_memory("drawn", drawn, True))
            rows, keys = self.plan.boxes
            maps = [self._map(tensor, box) for tensor, box in ((q, rows), (k, keys), (v, keys))]
            self._launch("forward", [bytes(p), *maps], min(blocks, MULTIPROCESSORS), sizes, memory, params)
            if drawn.any():  # the next launch begins with it
                raise EmulationError("the counter of drawn blocks is left at another number than 0")
        else:
            self._launch("forward", [bytes(p)], blocks, sizes, memory, params)
        return out, lse

    def tile_counts(self, q: Tensor, k: Tensor, *params: Tensor) -> Tensor:
        """As the op of that name."""
        named = {param.name: tensor for param, tensor in zip(self.variant.params, params, strict=True)}
        counts = torch.zeros(4, dtype=torch.int64)
        p, _keep = self.packer._params(q, k, k, q, None, None, named, 1)
        given = [bytes(p), counts.data_ptr().to_bytes(8, "little")]
        memory = [_memory("counts", counts, True)]
        if isinstance(self.plan, WarpgroupForward) and self.plan.word_bytes:
            memory += self._find_tiles(p, named)
            given[0] = bytes(p)
        self._launch("tile_counts", given, self._blocks(p), (self.plan.threads, 0), memory, named)
        _, full, partial, _ = counts.tolist()
        self.tiles.append((full, partial))
        return counts

    def _blocks(self, p: ForwardParams) -> int:
        """Blocks of query rows, of all heads and batch entries."""
        rows = -(-p.shape.q_len // self.plan.tile_q)
        return int(rows * p.shape.heads * p.shape.batch)

    def _find_tiles(self, p: ForwardParams, params: dict[str, Tensor]) -> list[Memory]:
        """Has the tiles of the mask found. The memory that they are in."""
        assert isinstance(self.plan, WarpgroupForward)
        blocks = self._blocks(p) if self.plan.by_head else self._blocks(p) // max(p.shape.heads, 1)
        words = blocks * max(-(-p.shape.kv_len // (32 * self.plan.tile_kv)), 1)
        # What no kernel has written yet would be more tiles than there are.
        self.workspace = torch.full((words * self.plan.word_bytes,), 0xFF, dtype=torch.uint8)
        p.workspace = self.workspace.data_ptr()
        found = [_memory("tiles", self.workspace, True)]
        self._launch("find_tiles", [bytes(p)], -(-words * self.plan.word_bytes // 4), (64, 0), found, params)
        return found

    def _map(self, tensor: Tensor, rows: int) -> bytes:
        """Boxes of so many rows of one head: all slabs of 64 elements, or one where the last is filled up."""
        if self.variant.layout == "bshd":
            tensor = tensor.transpose(1, 2)
        if tensor.numel() == 0:  # a map must have something in it: what is not there is not asked for
            tensor = tensor.new_zeros([max(size, 1) for size in tensor.shape])
        batch, heads, length, dim = tensor.shape
        # The step along an axis of one place is never taken, but has to be a possible one.
        by_batch, by_head, by_row = (
            step if size > 1 else 8 for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
        )
        if dim % 64:
            view = tensor.as_strided((batch, heads, length, dim), (by_batch, by_head, by_row, 1))
            return encode_tiled(view, (1, 1, rows, 64), swizzle=128)
        steps = (by_batch, by_head, 64 if dim > 64 else 8, by_row, 1)
        view = tensor.as_strided((batch, heads, dim // 64, length, 64), steps)
        return encode_tiled(view, (1, 1, dim // 64, rows, 64), swizzle=128)

    def _launch(
        self,
        kernel: str,
        given: list[bytes],
        blocks: int,
        sizes: tuple[int, int],
        memory: list[Memory],
        params: dict[str, Tensor],
    ) -> None:
        """As templates/include/fagen/host/launch.h does it: parameters of these bytes, so many blocks of threads, and
        threads and shared memory of each."""
        if blocks == 0:
            return
        entry = self.program.entries[f"fagen_{self.variant.name}_{kernel}"]
        packed = bytearray(entry.param_bytes + 16)
        for offset, size, each in zip(entry.param_offsets, entry.param_sizes, given, strict=True):
            assert size == len(each), f"{kernel} takes {size} bytes, not {len(each)}"
            packed[offset : offset + size] = each
        threads, shared = sizes
        memory = [*memory, *(_memory(name, tensor, False) for name, tensor in params.items())]
        done = launch(
            self.program,
            entry,
            (blocks, 1, 1),
            (threads, 1, 1),
            shared,
            bytes(packed),
            memory,
            completions=self.completions,
            seed=self.seed,
            checks=True,
            seconds=SECONDS,
            banks=self.banks,
        )
        self.conflicts = done.conflicts


def _memory(name: str, tensor: Tensor, writable: bool) -> Memory:
    """From a tensor's first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = 0 if tensor.numel() == 0 else last + 1
    return Memory(tensor.data_ptr(), elements * tensor.element_size(), writable, name)


def _for_boxes(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where boxes cannot be cut from it: templates/include/fagen/host/arguments.h."""
    fits = tensor.data_ptr() % 16 == 0 and tensor.stride(3) == 1
    fits = fits and all(
        size == 1 or (step > 0 and step % 8 == 0)
        for size, step in zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    )
    return tensor if fits or tensor.numel() == 0 else tensor.contiguous().clone()


def _shut_diagonals(params: dict[str, Tensor]) -> None:
    """Shuts out every seventh diagonal of those where neither factor of `biased` is 0, of each head others: of pairs of
    such with Inf, what comes out tells which scores are -inf."""
    bias, near = params["bias"], params["near"]
    near[:61].clamp_(min=1)
    for head in range(len(bias)):
        bias[head, 12 + 3 * head : 71 : 7] = -torch.inf


def _subject(
    target: str,
    name: str,
    head_dim: int,
    dtype: str,
    tiles: Tiles,
    more: tuple[Case, ...] = (),
    shut: Callable[[dict[str, Tensor]], None] | None = None,
    **fields: Any,
) -> Subject:
    return Subject(variant(name, head_dim, dtype, tiles=tiles, **fields), target, more, shut)


# The one that is tried fastest comes first: what all share is tried on it, and on the others where it outlives that.
SUBJECTS: dict[str, Subject] = {
    subject.variant.name: subject
    for subject in (
        # Copies that are done at once; no mask; rows of several times 128 bytes, which a thread's copies come back to.
        _subject("sm_75", "plain", 256, "f16", Tiles(q=64, kv=16, stages=1), value_dim=64),
        # Two stages; a window, with tiles of which it leaves one pair; swizzled rows; what is not finite is kept where
        # it belongs.
        _subject("sm_80", "window", 64, "bf16", Tiles(q=64, kv=16, stages=2), mask="causal and q - kv < 36"),
        # Tiles that are visited in vain, some of which the next block sees; more tiles than a warp asks its mask of at
        # once of which it admits none, before others; positions from the top left.
        _subject(
            "sm_80",
            "sparse",
            16,
            "f16",
            Tiles(q=64, kv=16, stages=2),
            align="top_left",
            mask="kv + 16 <= q and keep[b, kv] or kv // 64 % 16 * 4 + kv % 4 * (kv % 4) == 2",
            params=(Param("keep", "bool", ("B", "n")),),
        ),
        # One stage; rows that are padded; two tiles of rows a warp, six of keys, so that its answers are of several
        # words; params, one read outside, and a sink; more tiles than a warp asks its mask of at once, of which the
        # last ones and the first are not alike.
        _subject(
            "sm_80",
            "rich",
            24,
            "bf16",
            Tiles(q=128, kv=48, stages=1),
            value_dim=40,
            layout="bhsd",
            sink=True,
            mask="q >= kv - 50 and (kv >= 8 or keep[b, kv - 1])",
            score="s / 2 + slope[h] * (kv - q)",
            params=(Param("slope", "f32", ("H",)), Param("keep", "bool", ("B", "n"))),
        ),
        # Parts of params that alone decide of tiles: of three axes, with several indexes of each, reaching outside on
        # every side; of reals, compared without rounding, often with what those outside are, so that a tile can be
        # known to be left out by them; of labels that are compared one by one, few enough to be looked through, or
        # more. Of every other head most of a page has one label, which ends within a tile of the first batch entry,
        # another of the second, and within a warp's rows. Of `start`, the last tile that reads some would, a few keys
        # further, read none. Of its own: starts that rise, of which a tile's first ones refuse it, and those of keys
        # further would not.
        _subject(
            "sm_80",
            "parts",
            16,
            "f16",
            Tiles(q=64, kv=16, stages=2),
            more=(Case("rising-starts", 90, 37, runs=True),),
            align="top_left",
            mask="start[kv % 2, q // 2 - 9, kv - 3] > q // 2 - 6 and weight[kv // 8 - 1] < min(most, 0)"
            " if h % 3 == 0 else page[h, (kv - 12) * (381 if b == 0 else 1100)] == page[h, 16794 + q // 4]",
            params=(
                Param("start", "i32", (2, 38, 35)),
                Param("weight", "f32", ("n",)),
                Param("most", "f32", ()),
                Param("page", "i32", (4, 24000)),
            ),
        ),
        # Products of warpgroups, two of which take turns, fed by copies of boxes: of whole slabs, and of values a slab
        # and a part of one. The second sees the last keys, none of those before, and the first ones, which are whole;
        # rows far down see all that there are but the first tile, and those of long sequences too: of more tiles than
        # are asked for at once, the last ones and the first are not alike. Of its own: the last row of a block is the
        # first that sees all, and the last key is a tile; all rows do, of which the first ones see the first keys only
        # as far as their own; few rows, of which the keys that they see are to be neither fewer nor more; and blocks
        # that are drawn, of a tile each, so that the last ones are multiplied again when none is left to be drawn.
        _subject(
            "sm_90a",
            "warpgroups",
            64,
            "f16",
            Tiles(q=128, kv=16, stages=2),
            more=(
                Case("last-row-sees-all", 131, 305),
                Case("all-rows-see-all", 70, 377),
                Case("few-rows", 42, 69),
                Case("drawn-again", 67, 13, 2, 4, 1, poison="nan-value"),
            ),
            value_dim=72,
            mask="i >= kv and (i - kv < 16 or kv < 16 or i > 127) or q > 300 and kv > 20",
        ),
        # The same without a mask, and without turns, so that each has the parts of a param that it reads in two places;
        # three stages; a score, and a sink; rows of queries and keys that are less than a slab.
        _subject(
            "sm_90a",
            "alone",
            40,
            "bf16",
            Tiles(q=128, kv=32, stages=3, turns="none"),
            value_dim=64,
            sink=True,
            score="s / 2 - (abs(q - kv) / 16 if near[q - kv + 20] else 0)",
            params=(Param("near", "bool", ("n",)),),
        ),
        # Tiles of a mask that are found by a kernel before; parts of params along the diagonal, kept in shared memory
        # for a tile, of a head's row and of all heads; rows of less than a slab; a row that sees nothing after one that
        # does, of the two that a lane has. Of its own: as many tiles as a word has bits, and one more; labels of which
        # there is one too few for the last tile to be read whole; a tile that is whole for the first warpgroup only,
        # and one that is not, since a label changes within three rows; one that is visited in vain; and values that are
        # Inf under scores of -inf.
        _subject(
            "sm_90a",
            "biased",
            24,
            "bf16",
            Tiles(q=128, kv=80, stages=2),
            more=(
                Case("tiles-of-a-word", 1, 2560),
                Case("tiles-of-two-words", 1, 2561, 2),
                Case("one-label-short", 3, 76),
                Case("whole-for-one", 128, 177, 2, runs=True),
                Case("label-ends", 128, 221, 2, runs=True),
                Case("in-vain", 182, 108),
                Case(SHUT_DIAGONALS, 67, 163, 1, 2, 1, poison="inf-value", runs=True),
            ),
            shut=_shut_diagonals,
            value_dim=32,
            mask="kv - 30 <= q and (ids[b, q + 3] == ids[b, kv] or kv < 4) and q != 46",
            score="s + bias[h, q - kv + 40] * near[kv - q + 30] + slope[i]",
            params=(
                Param("bias", "f32", ("H", "n")),
                Param("near", "i32", ("n",)),
                Param("ids", "i32", ("B", "n")),
                Param("slope", "f32", ("Sq",)),
            ),
        ),
    )
}
