"""The kernels that are mutated: few and small, but together they use every part of the templates."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cpu"))

import kernels  # noqa: E402
from backward_kernels import BackwardKernel  # noqa: E402
from kernels import Kernel, variant  # noqa: E402

from fagen.plan import Plan, plan  # noqa: E402
from fagen.render import Source, render  # noqa: E402
from fagen.runtime.check.cases import Tiling  # noqa: E402
from fagen.runtime.check.memory import place  # noqa: E402
from fagen.runtime.variant import Param, Tiles  # noqa: E402

from ..subject import Checked  # noqa: E402


@dataclass(frozen=True)
class Subject(Checked):
    """A variant whose kernels are mutated. Tiles are small, so that few numbers cross many tiles.

    Its backward kernel takes ``rows`` query rows at a time and items of at most ``keys`` keys, in blocks of ``block``.
    Where ``forward_only``, neither that nor headers are mutated for it.
    """

    rows: int
    keys: int
    block: int
    forward_only: bool = False

    @cached_property
    def plan(self) -> Plan:
        """How it is built here."""
        made = plan(self.variant, "cpu", spec="mutation")
        # The planner's blocks are as large as these tiles, and its items so many that none would have several blocks.
        own = {"tile_q": self.rows, "tile_kv": self.keys, "block_kv": self.block, "enough": 2}
        return replace(made, backward=replace(made.backward, **own))

    @cached_property
    def sources(self) -> dict[str, Source]:
        """Its rendered kernels by direction."""
        return {source.direction: source for source in render(self.plan)}

    @property
    def tiling(self) -> Tiling:
        """Its tiles."""
        return Tiling.of(self.plan.to_json())


@kernels._PARALLEL_FOR
def _last_thread_first(begin: int, end: int, fn: Any, ctx: int) -> None:
    """A pool whose last thread does all the work, so that what is a thread's own must be where it says it is."""
    for part in reversed(range(begin, end)):
        fn(part, part + 1, ctx)


kernels._parallel_for = _last_thread_first


class Called:
    """The kernels of two libraries as a variant's public function, differentiable, as the check calls it."""

    def __init__(self, subject: Subject, forward: Path, backward: Path):
        self.variant = subject.variant
        self.forward = Kernel.__new__(Kernel)
        self.forward.variant = subject.variant
        self.forward.bind(forward)
        self.backward = BackwardKernel.__new__(BackwardKernel)
        self.backward.variant = subject.variant
        self.backward.forward = self.forward
        self.backward.bind(backward)
        self.ops = self

    def tile_counts(self, q: Tensor, k: Tensor, *params: Tensor) -> Tensor:
        """As the op of that name."""
        named = dict(zip((param.name for param in self.variant.params), params, strict=True))
        counts = self.forward.tile_counts(q, k, named)
        return torch.tensor([counts.total, counts.full, counts.partial, counts.empty])

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
    ) -> Any:
        if out is not None:
            return self.compute(q, k, v, scale, sink, params, out)
        named = (params[param.name] for param in self.variant.params)
        return _Call.apply(self, scale, q, k, v, sink, *named)

    def compute(
        self, q: Tensor, k: Tensor, v: Tensor, scale: Any, sink: Any, params: Any, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        sink = sink if sink is None else sink.contiguous()
        threads = torch.get_num_threads()
        # Once numbers, once NaN: a kernel takes what is not finite for an overflow, and computes it again.
        self.forward.junk = 0xFF if out is None else 0x3F
        return self.forward(q, k, v, scale=scale, sink=sink, params=params, threads=threads, out=out)


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, called: Called, scale: Any, q: Any, k: Any, v: Any, sink: Any, *params: Any) -> Any:
        named = dict(zip((param.name for param in called.variant.params), params, strict=True))
        o, lse = called.compute(q, k, v, scale, sink, named)
        ctx.called, ctx.scale, ctx.threads = called, scale, torch.get_num_threads()
        ctx.save_for_backward(q, k, v, o, lse, sink, *params)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Any, d_lse: Any) -> Any:
        q, k, v, o, lse, sink, *params = ctx.saved_tensors
        called = ctx.called
        named = dict(zip((param.name for param in called.variant.params), params, strict=True))
        needed = zip(("q", "k", "v", "sink", *named), ctx.needs_input_grad[2:], strict=True)
        found = called.backward(
            q,
            k,
            v,
            o,
            lse,
            d_o,
            None if d_lse is None else d_lse.contiguous(),
            scale=ctx.scale,
            sink=sink if sink is None else sink.contiguous(),
            params=named,
            threads=ctx.threads,
            out={name: _empty_like(tensor) for name, tensor in (("dq", q), ("dk", k), ("dv", v))},
            wanted=frozenset(f"d_{name}" for name, asked in needed if asked),
        )
        rest = [found[f"d_{name}"].to(tensor.dtype) if f"d_{name}" in found else None for name, tensor in named.items()]
        return (None, None, found["dq"], found["dk"], found["dv"], found.get("d_sink"), *rest)


def _empty_like(tensor: Tensor) -> Tensor:
    """NaN, with gaps where the tensor has gaps."""
    return place(
        torch.full(tensor.shape, torch.nan, dtype=tensor.dtype), "plain" if tensor.stride(-1) == 1 else "gaps"
    ).tensor


def _subject(
    name: str,
    head_dim: int,
    dtype: str,
    tiles: Tiles,
    *,
    rows: int,
    keys: int,
    block: int,
    forward_only: bool = False,
    **fields: Any,
) -> Subject:
    built = variant(name, head_dim, dtype, backward=True, tiles=tiles, **fields)
    return Subject(built, rows, keys, block, forward_only)


SUBJECTS: dict[str, Subject] = {
    subject.variant.name: subject
    for subject in (
        # Scores that bend by position and have no bound; a sink; head dims that are not whole vectors.
        _subject(
            "rich",
            24,
            "f32",
            Tiles(q=12, kv=32),
            rows=12,
            keys=128,
            block=64,
            value_dim=40,
            mask="causal and doc[b, q] == doc[b, kv]",
            score="(s / 2 if q - kv > 2 else s) + slope[h] * (kv - q)",
            params=(Param("slope", "f32", ("H",), True), Param("doc", "i32", ("B", "n"))),
            sink=True,
        ),
        # Pairs of bf16; a window; a learned distance table.
        _subject(
            "pairs",
            40,
            "bf16",
            Tiles(q=12, kv=32),
            rows=12,
            keys=64,
            block=32,
            value_dim=48,
            mask="abs(q - kv) <= 30",
            score="s + rel[h, q - kv + kv_len] + bias[b, h, kv]",
            params=(Param("rel", "f32", ("H", "n"), True), Param("bias", "bf16", ("B", "H", "n"), True)),
        ),
        # No mask, scores as they are; f16.
        _subject("plain", 16, "f16", Tiles(q=12, kv=32), rows=64, keys=64, block=32),
        # Panels of keys, of which the mask leaves some, in two ranges, and of values; head dims that are one short of
        # whole vectors; tiles of many blocks of rows; a table with four axes.
        _subject(
            "panels",
            31,
            "bf16",
            Tiles(q=24, kv=160),
            rows=24,
            keys=160,
            block=32,
            value_dim=79,
            mask="causal and (kv < 64 or q - kv < 100) and kv // 32 % 3 != 2",
            score="s + table[b, h, q % 5, kv % 3]",
            params=(Param("table", "f32", ("B", "n", 5, 3), True),),
        ),
        # Scores that an infinite product does not make infinite, but a param may, for a row whole; a head dim one word
        # short of a vector.
        _subject(
            "capped",
            15,
            "f32",
            Tiles(q=12, kv=32),
            rows=12,
            keys=64,
            block=32,
            value_dim=16,
            mask="causal",
            score="softcap(4) + gate[h, i]",
            params=(Param("gate", "f32", ("H", "Sq"), True),),
        ),
        # Keys that are not the same for all heads of a work item.
        _subject(
            "heads",
            16,
            "f32",
            Tiles(q=12, kv=32),
            rows=12,
            keys=32,
            block=32,
            mask="causal and q - kv < 16 * (h + 1)",
            forward_only=True,
        ),
    )
}

# math.h, array.h and bounds.h have tests of their own (tests/build/test_expr_*, tests/unit/test_expr_*).
HEADERS = tuple(
    f"cpu/{name}.h"
    for name in (
        "element",
        "gemm",
        "gradient",
        "nonfinite",
        "pack",
        "pairs",
        "param_gradient",
        "softmax",
        "turn",
        "work",
    )
)
