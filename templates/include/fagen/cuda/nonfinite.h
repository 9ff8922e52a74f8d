// What a plain product of weights and V cannot take: NaN and Inf, which must not reach rows that the mask keeps from their
// key (0 · NaN is NaN). They are rare: values are looked at where a tile is masked, and nothing else is done unless there
// are some.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/math.h"
#include "fagen/cuda/rows.h"
#include "fagen/cuda/shared_elements.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Of the part of a tile that this thread has copied (see load_rows).
template <class Element, class R, int kKeys, int kThreads>
__device__ __forceinline__ bool remove_nonfinite(uint32_t tile) {
  return remove_nonfinite<Element>(kKeys * R::kChunks, static_cast<int>(threadIdx.x), kThreads, [tile](int at) {
    return tile + R::at(at / R::kChunks, at % R::kChunks);
  });
}

// Sums of weights · v of those elements of v that are no finite numbers. They are kept in memory, apart from the others:
// no later weight makes a finite number of them, so they need no rescaling, and registers are not touched for them.
template <int kRowTiles, int kKeyTiles, int kValueTiles>
class SumsApart {
 public:
  // Remembers the scores of a tile, whose first key is `key`.
  __device__ __forceinline__ void keep(const float (&x)[kRowTiles][kKeyTiles][4], int key) {
    first_key_ = key;
#pragma unroll
    for (int row = 0; row < 2 * kRowTiles; ++row)
#pragma unroll
      for (int n = 0; n < 2 * kKeyTiles; ++n) scores_[row][n] = x[row / 2][n / 2][row % 2 * 2 + n % 2];
    ptx::hide_contents(*this);
  }
  // Of those that `drop` (see multiply_values) drops, nothing is left.
  template <class Drop>
  __device__ __forceinline__ void drop(Drop drop) {
#pragma unroll 1
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll 1
      for (int n = 0; n < kKeyTiles / 2; ++n) {
        uint32_t kept[4] = {~0u, ~0u, ~0u, ~0u};
        drop(kept, r, n);
#pragma unroll
        for (int e = 0; e < 4; ++e)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if ((kept[e] >> 16 * c & 1) == 0) scores_[2 * r + e % 2][4 * n + e / 2 * 2 + c] = -kInfinity;
      }
  }

  __device__ __forceinline__ int first_key() const { return first_key_; }

  // Adds of that tile the pairs that `admits(row, key)` lets pass. A product with such an element does not depend on how
  // large a weight is, but on whether it is 0: on whether the score is -inf. v is in global memory.
  template <class Element, class Admits>
  __device__ __forceinline__ void add(const RowsOf<typename Element::Type>& v, Admits admits) {
    const int lane = lane_id();
    if (!any_) {
#pragma unroll 1
      for (int n = 0; n < kSums; ++n) sums_[n] = 0.0f;
      any_ = true;
    }
#pragma unroll 1
    for (int key = 0; key < 8 * kKeyTiles; ++key)
#pragma unroll 1
      for (int row = 0; row < 2 * kRowTiles; ++row) {
        // Of the four lanes that share a row, one has this key's score.
        const float score = __shfl_sync(~0u, scores_[row][key / 8 * 2 + key % 2], lane / 4 * 4 + key % 8 / 2);
        if (!admits(8 * row + lane / 4, key)) continue;
        const float weight = score == -kInfinity ? 0.0f : 1.0f;
        const auto* const values = reinterpret_cast<const uint16_t*>(v.data + (first_key_ + key) * v.stride);
#pragma unroll 1
        for (int n = 0; n < 2 * kValueTiles; ++n) {
          const uint16_t value = values[(n / 2 * 8 + lane % 4 * 2 + n % 2) * v.stride_d];
          if (!Element::finite(value)) sums_[row * 2 * kValueTiles + n] += weight * Element::value(value);
        }
      }
  }

  // Adds them to the others.
  __device__ __forceinline__ void join(float (&o)[kRowTiles][kValueTiles][4]) const {
    if (!any_) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[r][n][e] += sums_[((2 * r + e / 2) * kValueTiles + n) * 2 + e % 2];
  }

 private:
  static constexpr int kSums = 4 * kRowTiles * kValueTiles;
  float scores_[2 * kRowTiles][2 * kKeyTiles], sums_[kSums];
  int first_key_ = 0;
  bool any_ = false;
};

}  // namespace
}  // namespace fagen
