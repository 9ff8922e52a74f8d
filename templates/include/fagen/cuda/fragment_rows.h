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
  constexpr int kFours = kValueTiles / 4 * 4;
  const auto pack = [&](int n, int half) {
    return Element::pack(o[n][2 * half] * factor[half], o[n][2 * half + 1] * factor[half]);
  };
  auto* target = reinterpret_cast<uint16_t*>(to.data + (first + lane / 4) * to.stride);
#pragma unroll
  for (int half = 0; half < 2; ++half, target += 8 * to.stride) {
    const bool real = lane / 4 + 8 * half < count;
    const auto store = [&](int n) {
      if (!real) return;
      const uint32_t packed = pack(n, half);
      uint16_t* const pair = target + (8 * n + lane % 4 * 2) * to.stride_d;
      pair[0] = static_cast<uint16_t>(packed);
      pair[to.stride_d] = static_cast<uint16_t>(packed >> 16);
    };
    if (to.whole) {
      // 32 elements of the row at a time, of which each lane writes 8 that lie together.
#pragma unroll
      for (int n = 0; n < kFours; n += 4) {
        uint32_t pairs[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) pairs[m] = pack(n + m, half);
        transpose_of_four(pairs);
        if (real)
          *reinterpret_cast<uint4*>(target + 8 * (n + lane % 4)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kFours; ++n) store(n);
    }
#pragma unroll
    for (int n = kFours; n < kValueTiles; ++n) store(n);
  }
}

}  // namespace
}  // namespace fagen
