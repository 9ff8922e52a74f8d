// Elements of a tile in shared memory, wherever in it they lie.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// Multiplies elements of `bytes` bytes: a part of them, each of kThreads threads another.
template <class Element, int kThreads>
__device__ __forceinline__ void multiply_elements(uint32_t shared, int bytes, int thread, float factor) {
  const uint32_t factors = Element::pack(factor, factor);
#pragma unroll 1
  for (int at = 16 * thread; at < bytes; at += 16 * kThreads) {
    uint4 x = ptx::ld_shared_16(shared + at);
    x.x = Element::multiply_add(x.x, factors, 0), x.y = Element::multiply_add(x.y, factors, 0);
    x.z = Element::multiply_add(x.z, factors, 0), x.w = Element::multiply_add(x.w, factors, 0);
    ptx::st_shared_16(shared + at, x);
  }
}

// Zeros take the place of elements that are no finite numbers. Whether there were such, in this thread's part.
template <class Element, int kThreads>
__device__ __forceinline__ bool clear_nonfinite(uint32_t shared, int bytes, int thread) {
  uint32_t found = 0;  // 0 times a finite number leaves it 0
#pragma unroll 1
  for (int at = 16 * thread; at < bytes; at += 16 * kThreads) {
    const uint4 x = ptx::ld_shared_16(shared + at);
    found = Element::multiply_add(x.x, 0, found);
    found = Element::multiply_add(x.y, 0, found);
    found = Element::multiply_add(x.z, 0, found);
    found = Element::multiply_add(x.w, 0, found);
  }
  if (found == 0) return false;
#pragma unroll 1
  for (int at = 16 * thread; at < bytes; at += 16 * kThreads)
#pragma unroll 1
    for (int n = 0; n < 16; n += 2)
      if (!Element::finite(ptx::ld_shared_2(shared + at + n))) ptx::st_shared_2(shared + at + n, 0);
  return true;
}

}  // namespace
}  // namespace fagen
