// The two products of attention on a warp's fragments, operands in shared memory.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/rows.h"
#include "fagen/cuda/shared_elements.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Where a lane finds its rows of fragments of a tile: of A, of B = K, and of B = V. What is computed from these is not
// to be kept from tile to tile, in as many registers.
template <class R>
__device__ __forceinline__ uint32_t place_in_rows(uint32_t tile) {
  const int lane = lane_id();
  uint32_t place = tile + R::at(lane % 16, lane / 16);
  ptx::hide(place);
  return place;
}
template <class R>
__device__ __forceinline__ uint32_t place_in_keys(uint32_t tile) {
  const int lane = lane_id();
  uint32_t place = tile + R::at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  ptx::hide(place);
  return place;
}

// x = q · k of rows `row` and on of the tile of queries.
template <class Element, class R, int kRowTiles, int kKeyTiles>
__device__ __forceinline__ void multiply_keys(float (&x)[kRowTiles][kKeyTiles][4], uint32_t queries, int row,
                                              uint32_t keys) {
  constexpr int kSteps = R::kChunks / 2, kPairs = kKeyTiles / 2;
  const uint32_t of_queries = place_in_rows<R>(queries + row * R::kBytes), of_keys = place_in_keys<R>(keys);
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) x[r][n][e] = 0.0f;
  // Fragments are loaded one step ahead of the products that take them.
  uint32_t a[2][kRowTiles][4], b[2][4];
  const auto load_queries = [&](int d) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
      ptx::ldmatrix_x4(a[d & 1][r], R::moved(of_queries, 16 * r, 2 * d));
  };
  const auto load_keys = [&](int step) {  // 16 keys by 16 elements
    ptx::ldmatrix_x4(b[step & 1], R::moved(of_keys, 16 * (step % kPairs), 2 * (step / kPairs)));
  };
  load_queries(0);
  load_keys(0);
#pragma unroll
  for (int d = 0; d < kSteps; ++d)
#pragma unroll
    for (int n = 0; n < kPairs; ++n) {
      const int step = d * kPairs + n;
      if (step + 1 < kSteps * kPairs) {
        if (n == (kPairs > 1 ? kPairs - 2 : 0) && d + 1 < kSteps) load_queries(d + 1);
        load_keys(step + 1);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        Element::multiply(x[r][2 * n], a[d & 1][r], b[step & 1][0], b[step & 1][1]);
        Element::multiply(x[r][2 * n + 1], a[d & 1][r], b[step & 1][2], b[step & 1][3]);
      }
    }
}

// o += w · v, of the weights that `weight(score, r, half)` gives scores x. They are computed as the product goes on: both
// units work at a time, and registers of scores become free.
// `drop(words, r, n)` takes weights away again, of 16 keys and one row tile, packed.
template <class Element, class R, int kRowTiles, int kKeyTiles, int kValueTiles, class Weight, class Drop>
__device__ __forceinline__ void multiply_values(float (&o)[kRowTiles][kValueTiles][4],
                                                const float (&x)[kRowTiles][kKeyTiles][4], uint32_t values,
                                                Weight weight, Drop drop) {
  constexpr int kSteps = kKeyTiles / 2, kPairs = (kValueTiles + 1) / 2;
  const uint32_t of_values = place_in_rows<R>(values);
  uint32_t b[2][4];
  const auto load_values = [&](int step) {  // 16 keys by 16 columns
    ptx::ldmatrix_x4_trans(b[step & 1], R::moved(of_values, 16 * (step / kPairs), 2 * (step % kPairs)));
  };
  load_values(0);
#pragma unroll
  for (int n = 0; n < kSteps; ++n) {
    uint32_t a[kRowTiles][4];  // weights of 16 keys
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float(&scores)[4] = x[r][2 * n + e / 2];
        const int half = e % 2;
        const float low = weight(scores[2 * half], r, half);
        a[r][e] = Element::pack(low, weight(scores[2 * half + 1], r, half));
      }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) drop(a[r], r, n);
#pragma unroll
    for (int d = 0; d < kPairs; ++d) {
      const int step = n * kPairs + d;
      if (step + 1 < kSteps * kPairs) load_values(step + 1);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        Element::multiply(o[r][2 * d], a[r], b[step & 1][0], b[step & 1][1]);
        if (2 * d + 1 < kValueTiles) Element::multiply(o[r][2 * d + 1], a[r], b[step & 1][2], b[step & 1][3]);
      }
    }
  }
}

template <class Element, class R, int kRowTiles, int kKeyTiles, int kValueTiles, class Weight>
__device__ __forceinline__ void multiply_values(float (&o)[kRowTiles][kValueTiles][4],
                                                const float (&x)[kRowTiles][kKeyTiles][4], uint32_t values,
                                                Weight weight) {
  multiply_values<Element, R>(o, x, values, weight, [](uint32_t (&)[4], int, int) {});
}

// Multiplies the part of a tile that this thread has copied (see load_rows).
template <class Element, class R, int kRows, int kThreads>
__device__ __forceinline__ void multiply_rows(uint32_t tile, float factor) {
  multiply_elements<Element>(kRows * R::kChunks, static_cast<int>(threadIdx.x), kThreads, factor, [tile](int at) {
    return tile + R::at(at / R::kChunks, at % R::kChunks);
  });
}

}  // namespace
}  // namespace fagen
