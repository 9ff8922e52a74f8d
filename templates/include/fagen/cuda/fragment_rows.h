// Sums of a warp's 16 rows, as products leave them in registers, into rows of global memory.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/rows.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

constexpr int kStagedBytes = 16 * 128;  // a slab of 64 elements of each row

// Writes o * factor, rounded, to rows `first` and on, of which there are `count`: by way of kSlabs slabs in shared memory,
// so that whole rows are stored. False if some of a lane's were no finite numbers.
template <class Element, int kSlabs, int kValueTiles>
__device__ __forceinline__ bool store_fragments(const RowsOf<typename Element::Type>& to, int first, int count,
                                                uint32_t staging, const float (&o)[kValueTiles][4],
                                                const float (&factor)[2]) {
  const int lane = lane_id(), row = lane % 16;
  const uint32_t place = staging + Rows<64>::at(row, lane / 16);
  uint32_t found[2] = {};  // 0 times a finite number leaves them 0
#pragma unroll
  for (int start = 0; start < kValueTiles; start += 8 * kSlabs) {
    if (start > 0) __syncwarp();
#pragma unroll
    for (int n = start; n < start + 8 * kSlabs && n < kValueTiles; n += 2) {
      uint32_t pairs[4] = {};
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int half = m % 2;
        if (n + m / 2 >= kValueTiles) continue;
        const auto& sums = o[n + m / 2];
        pairs[m] = Element::pack(sums[2 * half] * factor[half], sums[2 * half + 1] * factor[half]);
        found[half] = Element::multiply_add(pairs[m], 0, found[half]);
      }
      ptx::stmatrix_x4((place ^ static_cast<uint32_t>(n % 8 * 16)) + (n - start) / 8 * kStagedBytes, pairs);
    }
    __syncwarp();
    RowsOf<typename Element::Type> slab = to;
#pragma unroll
    for (int n = start; n < start + 8 * kSlabs && n < kValueTiles; n += 8) {
      slab.data = to.data + 8 * n * to.stride_d;
      const uint32_t from = staging + (n - start) / 8 * kStagedBytes;
      if (n + 8 <= kValueTiles) {
        store_rows<Rows<64>, 16, 64>(slab, first, count, from);
      } else {
        store_rows<Rows<64>, 16, 8 * (kValueTiles % 8 == 0 ? 8 : kValueTiles % 8)>(slab, first, count, from);
      }
    }
  }
  return (found[0] | found[1]) == 0;
}

}  // namespace
}  // namespace fagen
