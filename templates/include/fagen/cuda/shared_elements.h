// Elements of a tile in shared memory, gone through by several threads in chunks of 16 bytes. `place(n)` is where chunk n of
// `chunks` lies; a thread has `first` and each `step` after it.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

template <class Element, class Place>
__device__ __forceinline__ void multiply_elements(int chunks, int first, int step, float factor, Place place) {
  const uint32_t factors = Element::pack(factor, factor);
#pragma unroll 1
  for (int at = first; at < chunks; at += step) {
    const uint32_t shared = place(at);
    uint4 x = ptx::ld_shared_16(shared);
    x.x = Element::multiply_add(x.x, factors, 0), x.y = Element::multiply_add(x.y, factors, 0);
    x.z = Element::multiply_add(x.z, factors, 0), x.w = Element::multiply_add(x.w, factors, 0);
    ptx::st_shared_16(shared, x);
  }
}

// Zeros take the place of elements that are no finite numbers. Whether this thread's part had such.
template <class Element, class Place>
__device__ __forceinline__ bool remove_nonfinite(int chunks, int first, int step, Place place) {
  uint32_t found = 0;  // 0 times a finite number leaves it 0
#pragma unroll 1
  for (int at = first; at < chunks; at += step) {
    const uint4 x = ptx::ld_shared_16(place(at));
    found = Element::multiply_add(x.x, 0, found);
    found = Element::multiply_add(x.y, 0, found);
    found = Element::multiply_add(x.z, 0, found);
    found = Element::multiply_add(x.w, 0, found);
  }
  if (found == 0) return false;
#pragma unroll 1
  for (int at = first; at < chunks; at += step)
#pragma unroll 1
    for (int n = 0; n < 8; ++n) {
      const uint32_t shared = place(at) + 2 * n;
      if (!Element::finite(ptx::ld_shared_2(shared))) ptx::st_shared_2(shared, 0);
    }
  return true;
}

}  // namespace
}  // namespace fagen
