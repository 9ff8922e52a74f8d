// Elements of a param that are the same for all pairs of a diagonal, in shared memory, for a warp's 16 keys and a tile's
// queries, held as query_columns.h says: that of the first query and the last key, then of each query further on or key
// before.
#pragma once
#include "fagen/cuda/band.h"

namespace fagen {
namespace {

// A lane's part of one: of pairs of key 8 · row and query 8 · n + c, c being 0 or 1, from its first pair on. What its second
// key has is what its first had eight queries before.
template <class T, int kQueryTiles>
class ColumnBand {
 public:
  static constexpr int kBytes = 4 * (16 + 8 * kQueryTiles);

  __device__ __forceinline__ ColumnBand(uint32_t place, int lane) : place_(place + 4 * (15 + lane % 4 * 2 - lane / 4)) {
    read(-1);
  }

  // Queries 8 · n and on, of which those before have been read.
  __device__ __forceinline__ void read(int n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) words_[n + 1][c] = ptx::ld_shared_4(place_ + 4 * (8 * n + c));
  }
  __device__ __forceinline__ T of(int n, int c, int row) const {
    T x;
    from_word(x, words_[n + 1 - row][c]);
    return x;
  }

 private:
  uint32_t place_;
  uint32_t words_[kQueryTiles + 1][2];
};

}  // namespace
}  // namespace fagen
