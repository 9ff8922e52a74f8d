// Scores of a warp's 16 rows by its own products, operands in shared memory as products of warpgroups have them: where
// those scores are needed once more, and the other warps go on.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// x = q · k. Rows lie in slabs of 64 elements, 128 bytes, swizzled: those of q `queries_slab` bytes from slab to slab, those
// of k `keys_slab`. `queries` is where the first of the 16 rows begins.
template <class Element, int kDim, int kKeyTiles>
__device__ __forceinline__ void multiply_by_warp(float (&x)[kKeyTiles][4], uint32_t queries, uint32_t queries_slab,
                                                 uint32_t keys, uint32_t keys_slab) {
  const uint32_t lane = lane_id();
  const uint32_t row = lane % 16, key = lane % 8;  // whose chunks this lane gives the addresses of
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[n][e] = 0.0f;
#pragma unroll 1
  for (uint32_t d = 0; d < (kDim + 15) / 16; ++d) {
    const uint32_t chunk = d % 4 * 2;
    uint32_t a[4];
    ptx::ldmatrix_x4(a, queries + d / 4 * queries_slab + row * 128 + ((chunk + lane / 16) ^ (row & 7)) * 16);
    const uint32_t from = keys + d / 4 * keys_slab + key * 128 + ((chunk + lane / 8 % 2) ^ key) * 16;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      uint32_t b[2];  // no more at a time: registers are full of scores, sums and weights
      ptx::ldmatrix_x2(b, from + n * 8 * 128);
      Element::multiply(x[n], a, b[0], b[1]);
    }
  }
}

}  // namespace
}  // namespace fagen
