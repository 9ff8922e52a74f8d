"""Where a case's tensors lie in memory: odd offsets, gaps, permuted storage, stride 0, and the end of a page.

Whatever is not the tensor's own is filled with NaN (or the largest integer), so that a read outside shows in the
result, and :class:`Guarded` says afterwards whether anything there was written.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

PLACES = (
    "plain",
    "fence",
    "offset",
    "shifted",
    "padded",
    "spaced",
    "gaps",
    "strided",
    "permuted",
    "slice",
    "broadcast",
)

_PROT_NONE = 0
_EIGHT = 8  # bytes: half of what a card copies at a time


def junk(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A contiguous tensor of values that spoil whatever reads them."""
    if dtype.is_floating_point:
        return torch.full(shape, float("nan"), dtype=dtype)
    if dtype == torch.bool:
        return torch.ones(shape, dtype=dtype)
    return torch.full(shape, torch.iinfo(dtype).max, dtype=dtype)


@dataclass(frozen=True)
class Guarded:
    """``tensor``, a view of ``base``; ``before`` is a copy of all of ``base`` as it was handed out."""

    tensor: Tensor
    base: Tensor
    before: Tensor

    def on(self, device: str) -> Guarded:
        """The same on a device, which knows no pages that may not be touched."""
        if device == "cpu":
            return self
        base = self.base.to(device)
        offset = self.tensor.storage_offset() - self.base.storage_offset()
        return Guarded(base.as_strided(self.tensor.size(), self.tensor.stride(), offset), base, base.clone())

    def changed(self) -> bool:
        """Whether any byte of the base has changed: nothing may write an input."""
        return not torch.equal(_bytes(self.before), _bytes(self.base))

    def spilled(self) -> bool:
        """Whether a byte of the base outside the tensor has changed. Not for a tensor of stride 0."""
        expected = self.before.clone()
        offset = self.tensor.storage_offset() - self.base.storage_offset()
        expected.as_strided(self.tensor.size(), self.tensor.stride(), offset).copy_(self.tensor)
        return not torch.equal(_bytes(expected), _bytes(self.base))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def place(values: Tensor, where: str) -> Guarded:
    """The same values in memory laid out as ``where`` (one of :data:`PLACES`) says.

    "shifted", "padded" and "spaced" leave the beginning alone, the rows, and the first dim's stride, at multiples of 8
    bytes and no more. "strided" has gaps, and all else as cards like it. "broadcast" has stride 0 along every dim whose
    values are all equal (so a caller draws them with ``expand``).
    """
    shape, dtype = tuple(values.shape), values.dtype
    if where == "fence" and values.numel():
        base = _fenced(values.numel(), dtype)
        view = base.view(shape)
    elif where == "offset":
        base = junk((values.numel() + 6,), dtype)
        view = base[3 : 3 + values.numel()].view(shape)
    elif where == "shifted":
        base = junk((values.numel() + _EIGHT // dtype.itemsize,), dtype)
        view = base[_EIGHT // dtype.itemsize :].view(shape)
    elif where == "padded" and shape:
        base = junk((*shape[:-1], shape[-1] + _EIGHT // dtype.itemsize), dtype)
        view = base[..., : shape[-1]]
    elif where == "spaced" and shape:
        inner = values[0].numel() if shape[0] else 0
        base = junk((shape[0], inner + _EIGHT // dtype.itemsize), dtype)
        view = base[:, :inner].view(shape)
    elif where == "gaps" and shape:
        base = junk((*shape[:-1], 2 * shape[-1] + 1), dtype)
        view = base[..., 1 : 1 + 2 * shape[-1] : 2]
    elif where == "strided" and shape:
        base = junk((*shape[:-1], 2 * shape[-1]), dtype)
        view = base[..., ::2]
    elif where == "permuted" and len(shape) > 1:
        order = [len(shape) - 2, *range(len(shape) - 2), len(shape) - 1]
        base = junk(tuple(shape[n] for n in order), dtype)
        view = base.permute([order.index(n) for n in range(len(shape))])
    elif where == "slice" and shape:
        base = junk((*shape[:-1], 3 * shape[-1]), dtype)
        view = base[..., shape[-1] : 2 * shape[-1]]
    elif where == "broadcast":
        same = [size > 1 and bool((values == values.narrow(n, 0, 1)).all()) for n, size in enumerate(shape)]
        base = junk(tuple(1 if equal else size for equal, size in zip(same, shape, strict=True)), dtype)
        base.copy_(values[tuple(slice(0, 1) if equal else slice(None) for equal in same)])
        return Guarded(base.expand(shape), base, base.clone())
    else:
        base = junk(shape, dtype)
        view = base
    view.copy_(values)
    return Guarded(view, base, base.clone())


def _fenced(count: int, dtype: torch.dtype) -> Tensor:
    """``count`` elements whose last byte is the last before a page that may be neither read nor written."""
    page = mmap.PAGESIZE
    size = count * dtype.itemsize
    room = -(-size // page) * page
    memory = mmap.mmap(-1, room + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    with suppress(AttributeError, OSError, TypeError):  # not a POSIX system: plain memory
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + room), ctypes.c_size_t(page), _PROT_NONE)
    return torch.frombuffer(memory, dtype=dtype, count=count, offset=room - size)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """While this holds, torch hands out new memory filled with NaN, so a value that was never written shows."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    settings: Any = torch.utils.deterministic
    fill = settings.fill_uninitialized_memory
    # Not torch.use_deterministic_algorithms: it imports the compiler, which takes seconds and packages besides torch.
    torch._C._set_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = True
    try:
        yield
    finally:
        settings.fill_uninitialized_memory = fill
        torch._C._set_deterministic_algorithms(deterministic, warn_only=warn_only)
