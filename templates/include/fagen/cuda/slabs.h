// Rows in shared memory as products of warpgroups have them: in slabs of 64 elements, 128 bytes, swizzled, the last one
// filled up with zeros.
#pragma once
#include "fagen/ptx/tensor.h"

namespace fagen {
namespace {

// Has `rows` rows of a head copied, from `row` on, all kDim elements of each. Whole slabs are an axis of the tensor's map:
// one copy does. Else each slab is one, whose end is past the end of a row.
template <int kDim>
__device__ __forceinline__ void copy_rows(uint32_t shared, int rows, const ptx::TensorMap& map, uint32_t barrier, int row,
                                          int head, int batch) {
  if constexpr (kDim % 64 == 0) {
    ptx::copy_box(shared, map, barrier, 0, row, 0, head, batch);
  } else {
#pragma unroll 1
    for (int slab = 0; slab < (kDim + 63) / 64; ++slab)
      ptx::copy_box(shared + slab * rows * 128, map, barrier, 64 * slab, row, head, batch);
  }
}

}  // namespace
}  // namespace fagen
