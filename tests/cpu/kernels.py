"""Rendered kernels driven without a module: compiled alone and called by ctypes on torch tensors."""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from fagen.plan import plan
from fagen.render import Source, render
from fagen.resources import templates_dir
from fagen.runtime.language import parse, unparse
from fagen.runtime.variant import Expression, Param, Variant
from fagen.toolchain import find_compiler

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_PARAM_DTYPES = {**DTYPES, "i32": torch.int32, "i64": torch.int64, "bool": torch.bool}
_PART = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
_PARALLEL_FOR = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, _PART, ctypes.c_void_p)


class TensorView(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), *((f"stride_{axis}", ctypes.c_int64) for axis in "bshd")]


class ArrayView(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_int64 * 4), ("stride", ctypes.c_int64 * 4)]


class Pool(ctypes.Structure):
    _fields_ = [("parallel_for", ctypes.c_void_p), ("threads", ctypes.c_int32)]


class Shape(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("batch", "heads", "kv_heads", "q_len", "kv_len")]


class Dropout(ctypes.Structure):
    _fields_ = [("rng_state", ctypes.c_void_p), ("threshold", ctypes.c_uint32), ("factor", ctypes.c_float)]


class ForwardParams(ctypes.Structure):
    _fields_ = [
        ("shape", Shape),
        *((name, ctypes.c_float) for name in ("scale", "unit", "share")),
        *((name, TensorView) for name in "qkvo"),
        ("lse", ctypes.c_void_p),
        ("sink", ctypes.c_void_p),
        ("params", ArrayView * 16),
        ("workspace", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("drawn", ctypes.c_void_p),
        ("dropout", Dropout),
    ]


class TileCounts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("total", "full", "partial", "empty")]


@_PARALLEL_FOR
def _parallel_for(begin: int, end: int, fn: ctypes._CFuncPtr, ctx: int) -> None:
    threads = [threading.Thread(target=fn, args=(part, part + 1, ctx)) for part in range(begin, end)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def variant(
    name: str, head_dim: int, dtype: str = "f32", *, params: tuple[Param, ...] = (), **fields: object
) -> Variant:
    """A variant whose ``mask`` and ``score``, if given, are texts in the language of specs."""
    known = {param.name: param for param in params}
    for what in ("mask", "score"):
        text = fields.get(what)
        if isinstance(text, str):
            fields[what] = Expression(text, unparse(parse(text, params=known, expect=what)))  # type: ignore[arg-type]
    fields.setdefault("value_dim", head_dim)
    fields.setdefault("backward", False)
    return Variant(name=name, head_dim=head_dim, dtype=dtype, params=params, **fields)  # type: ignore[arg-type]


def compile_source(source: Source) -> Path:
    """The shared library of one rendered source, kept between runs of the tests by a hash of all that makes it."""
    compiler = find_compiler()
    include = templates_dir() / "include"
    flags = (*source.flags, "-Werror", "-fvisibility=default", "-shared")
    content = hashlib.sha256(repr((source.text, flags, compiler.identity)).encode())
    for header in sorted(include.rglob("*.h")):
        content.update(header.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"fagen-test-kernels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    library = folder / f"{content.hexdigest()[:24]}.so"
    if not library.exists():
        own = folder / f"{library.stem}_{os.getpid()}_{threading.get_ident()}"
        own.with_suffix(".cpp").write_text(source.text)
        command = [*compiler.command, *flags, f"-I{include}", str(own.with_suffix(".cpp")), "-o", str(own)]
        result = subprocess.run(command, capture_output=True, text=True)
        own.with_suffix(".cpp").unlink()
        assert result.returncode == 0, f"{source.name}:\n{result.stderr}"
        own.rename(library)
    return library


@lru_cache(maxsize=256)
def kernel(variant: Variant, isa: str = "native") -> Kernel:
    """The forward kernel of a variant."""
    return Kernel(variant, isa)


class Kernel:
    """The compiled forward kernel of one variant. ``junk`` is in every byte of a workspace that a call gets."""

    junk = 0xFF  # NaN

    def __init__(self, variant: Variant, isa: str = "native"):
        self.variant = variant
        self.plan = plan(variant, "cpu", isa, spec="tests")
        self.source = next(source for source in render(self.plan) if source.direction == "forward")
        self.bind(compile_source(self.source))

    def bind(self, path: Path) -> None:
        """Call the kernel of this library from now on."""
        library = ctypes.CDLL(str(path))
        self._workspace = library[f"fagen_{self.variant.name}_forward_workspace"]
        self._workspace.restype = ctypes.c_int64
        self._forward = library[f"fagen_{self.variant.name}_forward"]
        self._tile_counts = library[f"fagen_{self.variant.name}_tile_counts"]

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        sink: Tensor | None = None,
        params: Mapping[str, Tensor] | None = None,
        threads: int = 2,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """(o, lse) for tensors in the variant's layout; outputs are poisoned with NaN, the workspace with ``junk``."""
        if out is None:
            out = torch.full((*q.shape[:3], v.shape[-1]), math.nan, dtype=q.dtype)
        p, keep = self._params(q, k, v, out, scale, sink, params or {}, threads)
        bytes_needed = self._workspace(ctypes.byref(p))
        # A canary of 64 bytes on either side of the workspace.
        workspace = torch.full((bytes_needed + 192,), self.junk, dtype=torch.uint8)
        offset = 64 + (-workspace.data_ptr()) % 64
        p.workspace = workspace.data_ptr() + offset
        lse = torch.full((p.shape.batch, p.shape.heads, p.shape.q_len), math.nan)
        p.lse = lse.data_ptr()
        self._forward(ctypes.byref(p))
        assert (workspace[:offset] == self.junk).all() and (workspace[offset + bytes_needed :] == self.junk).all()
        del keep
        return out, lse

    def workspace(self, q: Tensor, k: Tensor, v: Tensor, threads: int = 2) -> int:
        """Bytes of scratch memory the kernel asks for."""
        p, keep = self._params(q, k, v, q, None, None, {}, threads)
        size = int(self._workspace(ctypes.byref(p)))
        del keep
        return size

    def tile_counts(self, q: Tensor, k: Tensor, params: Mapping[str, Tensor] | None = None) -> TileCounts:
        p, keep = self._params(q, k, k, q, None, None, params or {}, 1)
        counts = TileCounts()
        self._tile_counts(ctypes.byref(p), ctypes.byref(counts))
        del keep
        return counts

    def _params(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        scale: float | None,
        sink: Tensor | None,
        params: Mapping[str, Tensor],
        threads: int,
    ) -> tuple[ForwardParams, list[object]]:
        """The struct, and what must live as long as it."""
        head_axis, length_axis = (1, 2) if self.variant.layout == "bhsd" else (2, 1)
        p = ForwardParams()
        p.shape = Shape(q.shape[0], q.shape[head_axis], k.shape[head_axis], q.shape[length_axis], k.shape[length_axis])
        default = 1 / math.sqrt(self.variant.head_dim) if self.variant.scale is None else self.variant.scale
        p.scale = default if scale is None else scale
        # These two as host/ops.h makes them.
        p.unit = max(abs(p.scale), 1.2e-38) * math.log2(math.e)
        p.share = 2.0 ** -int(p.shape.kv_len).bit_length()
        for name, tensor in zip("qkvo", (q, k, v, o), strict=True):
            assert tensor.dtype == DTYPES[self.variant.dtype]
            strides = tensor.stride()
            view = TensorView(tensor.data_ptr(), strides[0], strides[length_axis], strides[head_axis], strides[3])
            setattr(p, name, view)
        for index, param in enumerate(self.variant.params):
            array = params[param.name]
            assert array.dtype == _PARAM_DTYPES[param.dtype] and array.dim() == len(param.shape)
            p.params[index].data = array.data_ptr()
            for axis in range(4):
                p.params[index].size[axis] = array.shape[axis] if axis < array.dim() else 1
                p.params[index].stride[axis] = array.stride(axis) if axis < array.dim() else 0
        if sink is not None:
            assert sink.dtype == torch.float32 and sink.is_contiguous()
            p.sink = sink.data_ptr()
        pool = Pool(ctypes.cast(_parallel_for, ctypes.c_void_p).value, threads)
        p.pool = ctypes.addressof(pool)
        return p, [pool, q, k, v, o, sink, params]
