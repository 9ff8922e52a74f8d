"""The kernels that are mutated: few and small, but together they use every part of the templates."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cpu"))

from kernels import ForwardParams, Kernel, variant  # noqa: E402

from fagen.emulate.compile import Loaded  # noqa: E402
from fagen.emulate.launch import Memory  # noqa: E402
from fagen.emulate.launch import run as launch  # noqa: E402
from fagen.plan import Plan, plan  # noqa: E402
from fagen.plan.mma.forward import Forward  # noqa: E402
from fagen.render import Source, render  # noqa: E402
from fagen.runtime.check.cases import Tiling  # noqa: E402
from fagen.runtime.variant import Param, Tiles  # noqa: E402

from ..subject import Checked  # noqa: E402

SECONDS = 8.0  # a launch takes a small part of one: one that runs longer hangs


@dataclass(frozen=True)
class Subject(Checked):
    """A variant whose kernel for ``target`` is mutated. Tiles are small, so that few numbers cross many tiles."""

    target: str

    @cached_property
    def plan(self) -> Plan:
        """How it is built here."""
        return plan(self.variant, self.target, spec="mutation")

    @cached_property
    def source(self) -> Source:
        """Its rendered kernel."""
        (source,) = render(self.plan)
        return source

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
        self.plan = subject.plan.forward
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
        sink = sink if sink is None else sink.contiguous()
        p, _keep = self.packer._params(q, k, v, out, scale, sink, params, 1)
        lse = torch.full((p.shape.batch, p.shape.heads, p.shape.q_len), torch.nan)
        p.lse = lse.data_ptr()
        memory = [_memory(name, t, False) for name, t in (("q", q), ("k", k), ("v", v))]
        memory += [_memory("o", out, True), _memory("lse", lse, True)]
        memory += [] if sink is None else [_memory("sink", sink, False)]
        assert isinstance(self.plan, Forward)
        self._launch("forward", p, (self.plan.threads, self.plan.shared_bytes), memory, params)
        return out, lse

    def tile_counts(self, q: Tensor, k: Tensor, *params: Tensor) -> Tensor:
        """As the op of that name."""
        named = {param.name: tensor for param, tensor in zip(self.variant.params, params, strict=True)}
        counts = torch.zeros(4, dtype=torch.int64)
        p, _keep = self.packer._params(q, k, k, q, None, None, named, 1)
        self._launch("tile_counts", p, (128, 0), [_memory("counts", counts, True)], named, counts.data_ptr())
        _, full, partial, _ = counts.tolist()
        self.tiles.append((full, partial))
        return counts

    def _launch(
        self,
        kernel: str,
        p: ForwardParams,
        sizes: tuple[int, int],
        memory: list[Memory],
        params: dict[str, Tensor],
        *pointers: int,
    ) -> None:
        """As templates/include/fagen/host/launch.h does it."""
        entry = self.program.entries[f"fagen_{self.variant.name}_{kernel}"]
        packed = bytearray(entry.param_bytes + 16)
        given = [bytes(p), *(pointer.to_bytes(8, "little") for pointer in pointers)]
        for offset, size, each in zip(entry.param_offsets, entry.param_sizes, given, strict=True):
            assert size == len(each), f"{kernel} takes {size} bytes, not {len(each)}"
            packed[offset : offset + size] = each
        blocks = -(-p.shape.q_len // self.plan.tile_q) * p.shape.heads * p.shape.batch
        if blocks == 0:
            return
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


def _subject(target: str, name: str, head_dim: int, dtype: str, tiles: Tiles, **fields: Any) -> Subject:
    return Subject(variant(name, head_dim, dtype, tiles=tiles, **fields), target)


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
        # Parts of params that alone decide of tiles: with several rows and columns, reaching outside on every side; of
        # reals, of which those outside are equal to what they are compared with; of labels that are compared one by
        # one, few enough to be looked through, or more. Of every other head most of a page has one label, which ends
        # within a tile of the first batch entry, another of the second, and within a warp's rows.
        _subject(
            "sm_80",
            "parts",
            16,
            "f16",
            Tiles(q=64, kv=16, stages=2),
            align="top_left",
            mask="start[q // 2 - 9, kv - 3] > q // 2 and weight[kv // 8 - 1] - most < -most"
            " if h % 3 == 0 else page[h, (kv - 12) * (381 if b == 0 else 1100)] == page[h, 16794 + q // 4]",
            params=(
                Param("start", "i32", (40, 40)),
                Param("weight", "f32", ("n",)),
                Param("most", "f32", ()),
                Param("page", "i32", (4, 24000)),
            ),
        ),
    )
}
