"""Rendered backward kernels, compiled alone and called by ctypes on torch tensors."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from kernels import ArrayView, Kernel, Shape, TensorView, compile_source, kernel
from torch import Tensor

from fagen.plan import plan
from fagen.render import render
from fagen.runtime.check.memory import place
from fagen.runtime.variant import Variant


class BackwardParams(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        ("scale", ctypes.c_float),
        *((name, TensorView) for name in ("q", "k", "v", "o", "d_o")),
        *((name, ctypes.c_void_p) for name in ("lse", "d_lse", "sink")),
        *((name, TensorView) for name in ("dq", "dk", "dv")),
        ("d_sink", ctypes.c_void_p),
        ("params", ArrayView * 16),
        ("d_params", ArrayView * 16),
        ("workspace", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
    ]


@lru_cache(maxsize=256)
def backward_kernel(variant: Variant, isa: str = "native") -> BackwardKernel:
    """The backward kernel of a variant."""
    return BackwardKernel(variant, isa)


class BackwardKernel:
    """The compiled backward kernel of one variant, and its forward."""

    def __init__(self, variant: Variant, isa: str = "native"):
        self.variant = variant
        self.forward: Kernel = kernel(variant, isa)
        self.plan = plan(variant, "cpu", isa, spec="tests")
        self.source = next(source for source in render(self.plan) if source.direction == "backward")
        self.bind(compile_source(self.source))

    def bind(self, path: Path) -> None:
        """Call the kernel of this library from now on."""
        library = ctypes.CDLL(str(path))
        self._workspace = library[f"fagen_{self.variant.name}_backward_workspace"]
        self._workspace.restype = ctypes.c_int64
        self._backward = library[f"fagen_{self.variant.name}_backward"]

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        d_o: Tensor,
        d_lse: Tensor | None = None,
        *,
        scale: float | None = None,
        sink: Tensor | None = None,
        params: Mapping[str, Tensor] | None = None,
        threads: int = 2,
        out: Mapping[str, Tensor] | None = None,
        wanted: frozenset[str] | None = None,
    ) -> dict[str, Tensor]:
        """Gradients by name: dq, dk, dv, d_sink and ``d_`` and the name of each param that has one.

        Outputs that must be written whole and the workspace are poisoned with NaN beforehand. ``out`` gives dq, dk
        and dv memory of one's own; ``wanted`` leaves out d_sink and gradients of params that it does not name.
        """
        got = dict(out) if out is not None else {}
        for name, like in (("dq", q), ("dk", k), ("dv", v)):
            got.setdefault(name, torch.full(like.shape, math.nan, dtype=like.dtype))
        p, keep = self._params(q, k, v, o, lse, d_o, d_lse, got, scale, sink, params or {}, threads, wanted)
        size = self._workspace(ctypes.byref(p))
        workspace = torch.full((size + 192,), 0xFF, dtype=torch.uint8)  # a canary on either side
        offset = 64 + (-workspace.data_ptr()) % 64
        p.workspace = workspace.data_ptr() + offset
        self._backward(ctypes.byref(p))
        assert (workspace[:offset] == 0xFF).all() and (workspace[offset + size :] == 0xFF).all()
        if p.d_sink:  # a canary after it too
            assert got["d_sink"].as_strided((1,), (1,), got["d_sink"].numel()).isnan()
        del keep
        return got

    def workspace(self, q: Tensor, k: Tensor, v: Tensor, threads: int = 2) -> int:
        """Bytes of scratch memory the kernel asks for."""
        got = {"dq": q, "dk": k, "dv": v}
        lse = torch.empty(0)
        p, keep = self._params(q, k, v, q, lse, q, None, got, None, None, {}, threads, frozenset())
        size = int(self._workspace(ctypes.byref(p)))
        del keep
        return size

    def _params(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        d_o: Tensor,
        d_lse: Tensor | None,
        got: dict[str, Tensor],
        scale: float | None,
        sink: Tensor | None,
        params: Mapping[str, Tensor],
        threads: int,
        wanted: frozenset[str] | None,
    ) -> tuple[BackwardParams, list[object]]:
        """The struct, and what must live as long as it."""
        same, keep = self.forward._params(q, k, v, o, scale, sink, params, threads)
        p = BackwardParams()
        for name in ("shape", "scale", "q", "k", "v", "o", "sink", "params", "pool"):
            setattr(p, name, getattr(same, name))
        head_axis, length_axis = (1, 2) if self.variant.layout == "bhsd" else (2, 1)
        for name, tensor in (("d_o", d_o), *((name, got[name]) for name in ("dq", "dk", "dv"))):
            strides = tensor.stride()
            setattr(
                p,
                name,
                TensorView(tensor.data_ptr(), strides[0], strides[length_axis], strides[head_axis], strides[3]),
            )
        assert lse.dtype == torch.float32 and lse.is_contiguous()
        p.lse = lse.data_ptr()
        if d_lse is not None:
            assert d_lse.dtype == torch.float32 and d_lse.is_contiguous()
            p.d_lse = d_lse.data_ptr()
        if sink is not None and (wanted is None or "d_sink" in wanted):
            got["d_sink"] = torch.full((sink.numel() + 1,), math.nan)[:-1].zero_()
            p.d_sink = got["d_sink"].data_ptr()
        for index, param in enumerate(self.variant.params):
            if not param.grad or param.name not in params:
                continue
            gradient = place(torch.zeros(params[param.name].shape), "fence").tensor
            view = p.d_params[index]
            if wanted is None or f"d_{param.name}" in wanted:
                got[f"d_{param.name}"] = gradient
                view.data = gradient.data_ptr()
            for axis in range(4):
                view.size[axis] = gradient.shape[axis] if axis < gradient.dim() else 1
                view.stride[axis] = gradient.stride(axis) if axis < gradient.dim() else 0
        return p, [*keep, o, lse, d_o, d_lse, got]
