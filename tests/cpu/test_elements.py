"""The elements of tensors, from and to float32: every one, and what lies between neighbours, ties among it."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest
import torch
from kernels import compile_source, variant
from torch import Tensor

from fagen.plan import plan
from fagen.render import render

TEXT = """
#include "fagen/cpu/element.h"

using namespace fagen;

template <class T>
void widen(const T* from, float* to, int64_t count) {
  for (int64_t n = 0; n < count; n += kLanes) store_floats(to + n, load_floats(from + n));
}
template <class T>
void narrow(const float* from, T* to, int64_t count) {
  for (int64_t n = 0; n < count; n += kLanes) store_floats(to + n, load_floats(from + n));
}
extern "C" void widen_bf16(const bf16* from, float* to, int64_t count) { widen(from, to, count); }
extern "C" void widen_f16(const f16* from, float* to, int64_t count) { widen(from, to, count); }
extern "C" void narrow_bf16(const float* from, bf16* to, int64_t count) { narrow(from, to, count); }
extern "C" void narrow_f16(const float* from, f16* to, int64_t count) { narrow(from, to, count); }
"""

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


@pytest.fixture(scope="module", params=["native", "avx2", "portable"])
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    source = next(iter(render(plan(variant("elements", 16), "cpu", request.param, spec="tests"))))
    return ctypes.CDLL(str(compile_source(replace(source, text=TEXT))))


def converted(library: ctypes.CDLL, name: str, given: Tensor, dtype: torch.dtype) -> Tensor:
    """What one of the functions above makes of ``given``, of which there are whole vectors."""
    assert given.is_contiguous() and given.numel() % 16 == 0
    found = torch.empty(given.shape, dtype=dtype)
    count = ctypes.c_int64(given.numel())
    library[name](ctypes.c_void_p(given.data_ptr()), ctypes.c_void_p(found.data_ptr()), count)
    return found


def every(dtype: torch.dtype) -> Tensor:
    """All elements of 16 bits."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def assert_same(got: Tensor, want: Tensor) -> None:
    """Bit for bit, but for what a NaN holds."""
    bits = torch.int16 if got.dtype.itemsize == 2 else torch.int32
    wrong = (got.view(bits) != want.view(bits)) & ~(got.isnan() & want.isnan())
    assert not wrong.any(), (got[wrong][:8], want[wrong][:8])


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_widens_exactly(library: ctypes.CDLL, dtype: str) -> None:
    elements = every(DTYPES[dtype])
    assert_same(converted(library, f"widen_{dtype}", elements, torch.float32), elements.float())


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_float_narrows_to_the_nearest_element_and_ties_to_the_even_one(library: ctypes.CDLL, dtype: str) -> None:
    elements = every(DTYPES[dtype]).float()
    lower = elements[elements.isfinite()]
    # The next element away from zero, as if there were one after the largest; halfway, and a bit to either side of it.
    step = torch.finfo(DTYPES[dtype]).eps * lower.abs().log2().floor().exp2().clamp(min=torch.finfo(DTYPES[dtype]).tiny)
    middle = lower + torch.copysign(step / 2.0, lower)
    bits = middle.view(torch.int32)
    near = torch.cat([(bits + n).view(torch.float32) for n in (-1, 0, 1)])
    given = torch.cat([elements, near, torch.randn(2**16) * 2.0 ** torch.randint(-40, 40, (2**16,))])
    given = given[: given.numel() // 16 * 16].contiguous()
    assert_same(converted(library, f"narrow_{dtype}", given, DTYPES[dtype]), given.to(DTYPES[dtype]))
