// What plain products of weights or slopes cannot take: NaN and Inf of a row of q, k or dO, which must not reach rows that
// the mask keeps from it (0 · NaN is NaN). They are rare: they are looked for where pairs are excluded, and nothing else is
// done unless there are some. Weights say which pairs are: those have kExcluded.
#pragma once
#include "fagen/cuda/backward_products.h"
#include "fagen/cuda/element.h"
#include "fagen/cuda/nonfinite.h"
#include "fagen/cuda/counting_pairs.h"

namespace fagen {
namespace {

// Whether the part of a tile that this thread has copied (see load_rows) holds some.
template <class Element, class R, int kRows, int kThreads>
__device__ __forceinline__ bool has_nonfinite(uint32_t tile) {
  uint32_t found = 0;  // 0 times a finite number leaves it 0
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < kRows * R::kChunks; at += kThreads) {
    const uint4 x = ptx::ld_shared_16(tile + R::at(at / R::kChunks, at % R::kChunks));
    found = Element::multiply_add(x.x, 0, found);
    found = Element::multiply_add(x.y, 0, found);
    found = Element::multiply_add(x.z, 0, found);
    found = Element::multiply_add(x.w, 0, found);
  }
  return found != 0;
}

template <class S>
__device__ __forceinline__ uint32_t pair_at(int key, int query) {
  return S::at(key, query / 8) + query % 8 * 2;
}

// sums += factors · from, of the elements of `from` that are no finite numbers and the pairs that are not excluded.
// `from` are query rows `first` and on, of which there are `rows`, in global memory; factors and weights are in shared
// memory, those of this warp's key rows from `row` on.
template <class Element, class S, int kParts, int kDim, int kRowTiles, int kTiles>
__device__ __forceinline__ void add_nonfinite_rows(float (&sums)[kRowTiles][kTiles][4],
                                                   const RowsOf<typename Element::Type>& from, int first, int rows,
                                                   uint32_t factors, uint32_t weights, int row, int part) {
  const int lane = lane_id();
#pragma unroll 1
  for (int query = 0; query < rows; ++query) {
    const auto* const elements = reinterpret_cast<const uint16_t*>(from.data + (first + query) * from.stride);
    int pair_column = lane % 4 * 2;
    ptx::hide(pair_column);  // places of columns are not kept for the next row, in as many registers
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = column_of<kParts>(part, n) + pair_column + c;
        const uint16_t element = column < kDim ? elements[column * from.stride_d] : uint16_t{0};
        if (Element::finite(element)) continue;
#pragma unroll
        for (int r = 0; r < 2 * kRowTiles; ++r) {
          const uint32_t pair = pair_at<S>(row + 8 * r + lane / 4, query);
          if (ptx::ld_shared_2(weights + pair) == kExcludedBits) continue;
          sums[r / 2][n][r % 2 * 2 + c] += Element::value(ptx::ld_shared_2(factors + pair)) * Element::value(element);
        }
      }
  }
}

// add_to_query_sums for a tile of keys that holds some, one element of dQ after the other.
template <class Element, class S, class K, int kThreads, int kKeys, int kRows>
__device__ __forceinline__ void add_to_query_sums_slowly(float* sums, int64_t first, uint32_t slopes, uint32_t weights,
                                                         uint32_t keys) {
  const int lane = lane_id();
#pragma unroll 1
  for (int n = warp_id(); n < kRows / 16 * K::kChunks * 4; n += kThreads / 32) {
    const int e = n % 4, tile = n / 4 % K::kChunks, row = n / 4 / K::kChunks * 16;
    const int query = row + e / 2 * 8 + lane / 4, column = 8 * tile + lane % 4 * 2 + e % 2;
    float sum = 0.0f;
#pragma unroll 1
    for (int key = 0; key < kKeys; ++key) {
      const uint32_t pair = pair_at<S>(key, query);
      if (ptx::ld_shared_2(weights + pair) == kExcludedBits) continue;
      sum += Element::value(ptx::ld_shared_2(slopes + pair)) *
             Element::value(ptx::ld_shared_2(keys + K::at(key, column / 8) + column % 8 * 2));
    }
    ptx::add_global(place_in_sums<K::kChunks>(sums, first + row, 8 * tile) + e * 32, sum);
  }
}

}  // namespace
}  // namespace fagen
