// Sums over the threads of a warp and of a block, always in the same order.
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/ptx/barrier.h"

namespace fagen {
namespace {

// Over the lanes that share a column of a product: every fourth.
__device__ __forceinline__ float sum_of_column(float x) {
#pragma unroll
  for (int step = 4; step < 32; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return sum_of_column(x);
}

// All threads get it.
template <int kWarps>
__device__ __forceinline__ float sum_of_block(float x, float (&sums)[kWarps]) {
  x = sum_of_warp(x);
  if (lane_id() == 0) sums[warp_id()] = x;
  ptx::sync_block();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

}  // namespace
}  // namespace fagen
