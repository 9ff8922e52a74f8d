// Zeros in memory that later kernels add to: by a kernel that runs before them anyway, so that none is launched for that.
#pragma once
#include "fagen/params.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// kFloats of them, by the kThreads threads of a block.
template <int kFloats, int kThreads>
__device__ __forceinline__ void put_zeros(float* to) {
  static_assert(kFloats % 4 == 0, "16 bytes a store");
  constexpr int kStores = kFloats / 4;
  float* const own = to + 4 * threadIdx.x;
#pragma unroll
  for (int n = 0; n < kStores; n += kThreads)
    if (kStores - n >= kThreads || static_cast<int>(threadIdx.x) < kStores - n)
      ptx::st_global_16(own + 4 * n, make_uint4(0, 0, 0, 0));
}

// All counters, of so many tiles of keys in all key heads, by all blocks of a kernel.
__device__ __forceinline__ void clear_counters(const BackwardParams& p, int64_t tiles) {
  const int64_t count = 1 + (1 + kDqAdders) * tiles, threads = int64_t{gridDim.x} * blockDim.x;
#pragma unroll 1
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < count; n += threads) ptx::st_global_4(p.turns + n, 0);
}

}  // namespace
}  // namespace fagen
