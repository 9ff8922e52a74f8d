"""Tensor maps for emulated kernels: what cuTensorMapEncodeTiled makes for a card."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .compile import machine
from .faults import EmulationError
from .launch import cpu_tensor, whole

# Numbers of CUtensorMapDataType.
_TYPES = {
    torch.uint8: 0, torch.int8: 0, torch.float8_e4m3fn: 0, torch.float8_e5m2: 0, torch.uint16: 1, torch.int16: 1,
    torch.uint32: 2, torch.int32: 3, torch.uint64: 4, torch.int64: 5, torch.float16: 6, torch.float32: 7,
    torch.float64: 8, torch.bfloat16: 9,
}  # fmt: skip
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_BYTES = 128


def encode_tiled(
    tensor: Tensor, box: Sequence[int], *, swizzle: int = 0, element_strides: Sequence[int] | None = None
) -> bytes:
    """The tensor map of ``tensor`` as it lies in memory: 128 bytes, for a kernel's parameter or for its memory.

    Sizes and strides are the tensor's own; its last dimension is the map's first, and must be dense. ``box`` is in the
    tensor's order too. ``swizzle`` is 0, 32, 64 or 128 bytes. What the driver would not accept is an EmulationError.
    The tensor itself must be named in the launch's ``memory`` (or be an argument).
    """
    rank = cpu_tensor(tensor, "encode_tiled").dim()
    if tensor.dtype not in _TYPES:
        raise EmulationError(f"encode_tiled: no tensor maps of {tensor.dtype}")
    if rank and tensor.stride(-1) != 1:
        raise EmulationError(f"encode_tiled: expected a dense last dimension, found one of stride {tensor.stride(-1)}")
    if not isinstance(swizzle, int) or swizzle not in _SWIZZLES:
        raise EmulationError(
            f"encode_tiled: swizzle: expected one of {', '.join(map(str, _SWIZZLES))}, found {swizzle!r}"
        )
    room = max(rank, 1)
    box = _numbers(box, rank, "box")
    steps = _numbers([1] * rank if element_strides is None else element_strides, rank, "element_strides")
    to = (ctypes.c_uint8 * (_BYTES + 64))()
    address = (ctypes.addressof(to) + 63) // 64 * 64
    message = ctypes.create_string_buffer(256)
    strides = [stride * tensor.element_size() for stride in tensor.stride()[:-1]][::-1]
    failed = machine().fagen_encode_tiled(
        ctypes.c_void_p(address),
        ctypes.c_uint32(_TYPES[tensor.dtype]),
        ctypes.c_uint32(rank),
        ctypes.c_uint64(tensor.data_ptr()),
        (ctypes.c_uint64 * room)(*list(tensor.shape)[::-1]),
        (ctypes.c_uint64 * room)(*strides),
        (ctypes.c_uint32 * room)(*box[::-1]),
        (ctypes.c_uint32 * room)(*steps[::-1]),
        ctypes.c_uint32(0),
        ctypes.c_uint32(_SWIZZLES[swizzle]),
        ctypes.c_uint32(0),
        ctypes.c_uint32(0),
        message,
        ctypes.c_uint64(len(message)),
    )
    if failed:
        raise EmulationError(f"encode_tiled: {message.value.decode()}")
    return ctypes.string_at(address, _BYTES)


def _numbers(given: Sequence[int], rank: int, what: str) -> list[int]:
    """One for each dimension."""
    if not isinstance(given, Sequence) or len(given) != rank:
        raise EmulationError(f"encode_tiled: {what}: expected {rank} numbers, found {given!r}")
    return [whole(each, f"encode_tiled: {what}", 2**32 - 1) for each in given]
