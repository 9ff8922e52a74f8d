// The products of the backward kernel whose first operand is in shared memory too: weights or slopes, key rows by query
// columns. Those of q · k and dO · v are multiply_keys of products.h, with keys as its rows.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/products.h"
#include "fagen/cuda/rows.h"

namespace fagen {
namespace {

// The column that a warp's part of kParts has its n-th 8 from: parts take 16 at a time in turn.
template <int kParts>
__device__ __forceinline__ int column_of(int part, int n) {
  return (n / 2 * kParts + part) * 16 + n % 2 * 8;
}

// sums += a · b: of rows `row` and on of tile a, 16 kSteps wide, and this part's columns of tile b.
template <class Element, class A, class B, int kParts, int kSteps, int kRowTiles, int kTiles>
__device__ __forceinline__ void add_product(float (&sums)[kRowTiles][kTiles][4], uint32_t a, int row, uint32_t b, int part) {
  constexpr int kPairs = kTiles / 2;
  const uint32_t of_a = place_in_rows<A>(a + row * A::kBytes);
  const uint32_t of_b = B::moved(place_in_rows<B>(b), 0, 2 * part);
  // Fragments of b are loaded one step ahead of the products that take them.
  uint32_t x[kRowTiles][4], y[2][4];
  const auto load_b = [&](int step) {  // 16 rows by 16 columns
    ptx::ldmatrix_x4_trans(y[step & 1], B::moved(of_b, 16 * (step / kPairs), 2 * kParts * (step % kPairs)));
  };
  load_b(0);
#pragma unroll
  for (int n = 0; n < kSteps; ++n) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) ptx::ldmatrix_x4(x[r], A::moved(of_a, 16 * r, 2 * n));
#pragma unroll
    for (int d = 0; d < kPairs; ++d) {
      const int step = n * kPairs + d;
      if (step + 1 < kSteps * kPairs) load_b(step + 1);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        Element::multiply(sums[r][2 * d], x[r], y[step & 1][0], y[step & 1][1]);
        Element::multiply(sums[r][2 * d + 1], x[r], y[step & 1][2], y[step & 1][3]);
      }
    }
  }
}

// Sums of dQ of 16 query rows by all columns lie one after another as products leave them, those of a lane 32 apart: a
// warp adds to adjacent ones.
template <int kTiles>
__device__ __forceinline__ float* place_in_sums(float* sums, int64_t row, int column) {
  return sums + (row / 16 * kTiles + column / 8) * (4 * 32) + lane_id();
}

// How a block's warps share dQ: so many along the query rows, the others along columns, 16 at a time in turn.
template <int kWarps, int kRows, class K>
struct SharedRows {
  static constexpr int kAlong = kRows / 16 < kWarps ? kRows / 16 : kWarps, kParts = kWarps / kAlong;
  static constexpr int kUnits = K::kChunks / 2, kOfPart = (kUnits + kParts - 1) / kParts;
  static constexpr int kAtATime = kOfPart < 4 ? kOfPart : 4;  // 64 columns: registers are for dK and dV
  static_assert(kRows / 16 % kAlong == 0 && kWarps % kAlong == 0, "whole tiles of rows a warp");
};

// sums += slopes · k, of a tile of kKeys keys by kRows query rows, from row `first` of the sums on.
template <class Element, class S, class K, int kWarps, int kKeys, int kRows>
__device__ __forceinline__ void add_to_query_sums(float* sums, int64_t first, uint32_t slopes, uint32_t keys) {
  using Share = SharedRows<kWarps, kRows, K>;
  const int part = warp_id() / Share::kAlong;
  const uint32_t of_slopes = place_in_keys<S>(slopes), of_keys = place_in_rows<K>(keys);
  constexpr int kGroups = (Share::kOfPart + Share::kAtATime - 1) / Share::kAtATime;
  constexpr bool kWhole = kGroups * Share::kAtATime * Share::kParts == Share::kUnits;  // no warp goes past the columns
#pragma unroll 1
  for (int n = 0; n < kRows / 16 / Share::kAlong * kGroups; ++n) {
    const int row = (warp_id() % Share::kAlong + n / kGroups * Share::kAlong) * 16;
    const int first_unit = n % kGroups * Share::kAtATime * Share::kParts + part;
    float dq[Share::kAtATime][2][4] = {};
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) {
      uint32_t x[4];
      ptx::ldmatrix_x4_trans(x, S::moved(of_slopes, 16 * step, row / 8));
#pragma unroll
      for (int d = 0; d < Share::kAtATime; ++d) {
        const int unit = first_unit + d * Share::kParts;
        if (!kWhole && unit >= Share::kUnits) continue;
        uint32_t y[4];
        ptx::ldmatrix_x4_trans(y, K::moved(of_keys, 16 * step, 2 * unit));
        Element::multiply(dq[d][0], x, y[0], y[1]);
        Element::multiply(dq[d][1], x, y[2], y[3]);
      }
    }
#pragma unroll
    for (int d = 0; d < Share::kAtATime; ++d) {
      const int unit = first_unit + d * Share::kParts;
      if (!kWhole && unit >= Share::kUnits) continue;
      float* const place = place_in_sums<K::kChunks>(sums, first + row, 16 * unit);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int e = 0; e < 4; ++e) ptx::add_global(place + (4 * half + e) * 32, dq[d][half][e]);
    }
  }
}

}  // namespace
}  // namespace fagen
