// How what a block has computed gets to where it belongs: weights and slopes to shared memory, sums to rows of tensors.
#pragma once
#include "fagen/cuda/backward_products.h"
#include "fagen/cuda/rows.h"

namespace fagen {
namespace {

// Pairs of a warp, rounded, to rows `row` and on and columns `column` (a multiple of 16) and on of a tile.
template <class Element, class S, int kRowTiles, int kTiles>
__device__ __forceinline__ void store_pairs(uint32_t tile, int row, int column, const float (&x)[kRowTiles][kTiles][4]) {
  const int lane = lane_id();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        ptx::st_shared_4(tile + S::at(row + 16 * r + 8 * half + lane / 4, column / 8 + n) + lane % 4 * 4,
                         Element::pack(x[r][n][2 * half], x[r][n][2 * half + 1]));
}

// Sums of a block, times `factor` and rounded, to rows `first` and on, of which there are `count`: by way of a tile in
// shared memory that nobody needs any more. All threads call it.
template <class Element, class R, int kParts, int kWarps, int kRows, int kDim, int kRowTiles, int kTiles>
__device__ __forceinline__ void store_sums(const RowsOf<typename Element::Type>& to, int first, int count, uint32_t tile,
                                           int row, int part, const float (&sums)[kRowTiles][kTiles][4], float factor) {
  const int lane = lane_id();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int n = 0; n < kTiles; ++n)
        ptx::st_shared_4(tile + R::at(row + 16 * r + 8 * half + lane / 4, column_of<kParts>(part, n) / 8) + lane % 4 * 4,
                         Element::pack(sums[r][n][2 * half] * factor, sums[r][n][2 * half + 1] * factor));
  ptx::sync_block();
  constexpr int kOfWarp = kRows / kWarps;
  const int own = warp_id() * kOfWarp, left = count - own;
  store_rows<R, kOfWarp, kDim>(to, first + own, left < kOfWarp ? left : kOfWarp, tile + own * R::kBytes);
}

// Sums of dQ of a tile of kRows query rows, times `factor` and rounded, to rows `row` and on, of which there are `count`.
// The tile's are from row `first` of the sums on.
template <class Element, class R, int kWarps, int kRows, int kDim>
__device__ __forceinline__ void write_query_sums(const RowsOf<typename Element::Type>& to, int row, int count, float* sums,
                                                 int64_t first, float factor) {
  const int lane = lane_id();
#pragma unroll 1
  for (int n = warp_id(); n < kRows / 16 * (kDim / 8); n += kWarps) {
    const int at = n / (kDim / 8) * 16, column = n % (kDim / 8) * 8;
    const float* const from = place_in_sums<R::kChunks>(sums, first + at, column);
    uint32_t pairs[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) pairs[half] = Element::pack(from[64 * half] * factor, from[64 * half + 32] * factor);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int own = at + 8 * half + lane / 4;
      if (own >= count) continue;
      auto* const target = to.data + (row + own) * to.stride + (column + lane % 4 * 2) * to.stride_d;
      if (to.whole) {
        ptx::st_global_4(target, pairs[half]);
      } else {
        auto* const elements = reinterpret_cast<uint16_t*>(target);
        elements[0] = static_cast<uint16_t>(pairs[half]), elements[to.stride_d] = static_cast<uint16_t>(pairs[half] >> 16);
      }
    }
  }
}

}  // namespace
}  // namespace fagen
