// Sums of a warp's 16 rows, as products leave them in registers, into rows of global memory.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/rows.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Four lanes exchange: lane t of each four then has, in order, what lanes 0 to 3 had in x[t].
__device__ __forceinline__ void transpose_of_four(uint32_t (&x)[4]) {
  const int lane = lane_id();
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (n & step) continue;
      const uint32_t given = upper ? x[n] : x[n + step];
      const uint32_t taken = __shfl_xor_sync(~0u, given, step);
      if (upper) {
        x[n] = taken;
      } else {
        x[n + step] = taken;
      }
    }
  }
}

// Writes o * factor, rounded, to rows `first` and on, of which there are `count`.
template <class Element, int kValueTiles>
__device__ __forceinline__ void store_fragments(const RowsOf<typename Element::Type>& to, int first, int count,
                                                const float (&o)[kValueTiles][4], const float (&factor)[2]) {
  const int lane = lane_id();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    auto* const target = reinterpret_cast<uint16_t*>(to.data + (first + row) * to.stride);
    const bool real = row < count;
    constexpr int kFours = kValueTiles / 4 * 4;
#pragma unroll
    for (int n = 0; n < kValueTiles; n += 4) {
      uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4 && n + m < kValueTiles; ++m)
        pairs[m] = Element::pack(o[n + m][2 * half] * factor[half], o[n + m][2 * half + 1] * factor[half]);
      if (to.whole && n < kFours) {
        // 32 elements of the row, of which each lane writes 8 that lie together.
        transpose_of_four(pairs);
        if (real)
          *reinterpret_cast<uint4*>(target + 8 * (n + lane % 4)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        continue;
      }
#pragma unroll
      for (int m = 0; m < 4 && n + m < kValueTiles; ++m) {
        if (!real) continue;
        uint16_t* const pair = target + (8 * (n + m) + lane % 4 * 2) * to.stride_d;
        pair[0] = static_cast<uint16_t>(pairs[m]);
        pair[to.stride_d] = static_cast<uint16_t>(pairs[m] >> 16);
      }
    }
  }
}

}  // namespace
}  // namespace fagen
