// Sums over a warp's pairs, which are held as query_columns.h says: of a query's, of a key's, and of a diagonal's, whose
// queries and keys are equally far apart. Few shuffles of many sums at once: of two of them each lane sends the one that
// its partner goes on with.
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// The weight of a pair that the mask excludes, or of a row that sees no key: no other has this sign. So what is no finite
// number in such a pair is kept from sums, and what is in one with a weight of 0 is not.
constexpr float kExcluded = -0.0f;
__device__ __forceinline__ bool is_excluded(float weight) { return __float_as_uint(weight) == 0x80000000u; }

// Of two sums, of which lanes `step` apart have a part each, this lane's: the second if `second`.
__device__ __forceinline__ float sum_of_either(float x, float y, bool second, int step) {
  return (second ? y : x) + __shfl_xor_sync(~0u, second ? x : y, step);
}

// Over the queries of a lane's two keys: of key lane / 4 + 8 * (lane % 2).
__device__ __forceinline__ float sum_of_keys(const float (&x)[2]) {
  const float sum = sum_of_either(x[0], x[1], lane_id() % 2 != 0, 1);
  return sum + __shfl_xor_sync(~0u, sum, 2);
}

// A sum in shared memory, of a warp's own, whose first lane alone reads and writes it.
__device__ __forceinline__ void add_to_sum(uint32_t shared, float x) {
  if (lane_id() == 0) ptx::st_shared_4(shared, __float_as_uint(__uint_as_float(ptx::ld_shared_4(shared)) + x));
}
// Leaves nothing in it.
__device__ __forceinline__ float take_sum(uint32_t shared) {
  const float sum = __uint_as_float(ptx::ld_shared_4(shared));
  ptx::st_shared_4(shared, 0);
  return sum;
}

// Over the keys of queries, which come eight at a time, 0 to kTiles - 1.
template <int kTiles>
class ColumnSums {
 public:
  __device__ __forceinline__ explicit ColumnSums(int lane) : lane_(lane) {}

  // Of each of a lane's two queries what its own keys sum to. `add(column, sum)` takes what is none but zero, each by one
  // lane, when it is there.
  template <class Add>
  __device__ __forceinline__ void put(int n, float x, float y, Add add) {
    const bool first = (lane_ & 4) != 0, second = (lane_ & 8) != 0, third = (lane_ & 16) != 0;
    float sum = sum_of_either(x, y, first, 4);
    if (n % 2 == 0) of_one_ = sum;
    if (n % 2 == 1 || n == kTiles - 1) {
      sum = sum_of_either(of_one_, n % 2 == 1 ? sum : 0.0f, second, 8);
      if (n % 4 < 2) of_two_ = sum;
      if (n % 4 == 3 || n == kTiles - 1) {
        sum = sum_of_either(of_two_, n % 4 < 2 ? 0.0f : sum, third, 16);
        const int eight = n / 4 * 4 + (second ? 1 : 0) + (third ? 2 : 0);
        if (sum != 0.0f) add(8 * eight + 2 * (lane_ % 4) + (first ? 1 : 0), sum);
      }
    }
  }

 private:
  const int lane_;
  float of_one_ = 0.0f, of_two_ = 0.0f;  // of eight columns, and of sixteen, until the next ones come
};

// Over the pairs of diagonals.
template <int kTiles>
class DiagonalSums {
 public:
  __device__ __forceinline__ explicit DiagonalSums(int lane) : lane_(lane), columns_(lane) {}

  // What the pairs of eight queries have: [row][c] of a lane's keys and queries. `add(distance, sum)` takes what is none
  // but zero, each by one lane: `distance` is how far the query is past the key, both counted from the tile's first.
  template <class Add>
  __device__ __forceinline__ void put(int n, const float (&x)[2][2], Add add) {
    // A lane's second key is as far from these as its first is from the eight queries before.
    put_square(n - 1, above_[0] + x[1][0], above_[1] + x[1][1], add);
    above_[0] = x[0][0], above_[1] = x[0][1];
    if (n == kTiles - 1) {
      put_square(n, above_[0], above_[1], add);
      put_square(n + 1, 0.0f, 0.0f, add);
    }
  }

 private:
  // Eight queries and keys. Rows are turned, that of key r by r places, so that a diagonal becomes a column: from column r
  // on they belong to distances 8 n and on, before it to the eight less.
  template <class Add>
  __device__ __forceinline__ void put_square(int n, float x, float y, Add add) {
    const int r = lane_ / 4, c = lane_ % 4;
    const bool odd = r % 2 != 0;
    const float turned[2] = {__shfl_sync(~0u, odd ? y : x, 4 * r + (c + r / 2) % 4),
                             __shfl_sync(~0u, odd ? x : y, 4 * r + (c + (r + 1) / 2) % 4)};
    float own[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) own[k] = 2 * c + k + r >= 8 ? turned[k] : before_[k];
    columns_.put(n + 1, own[0], own[1], [&](int column, float sum) { add(column - 16, sum); });
    before_[0] = turned[0], before_[1] = turned[1];
  }

  const int lane_;
  float above_[2] = {}, before_[2] = {};
  ColumnSums<kTiles + 2> columns_;  // distances -16 and on
};

}  // namespace
}  // namespace fagen
