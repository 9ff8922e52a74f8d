// The pairs of a tile that a mask excludes, for masks of few instructions; see exclude.h for the others.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Scores of pairs that `test(row, column)` excludes become -inf.
template <int kRowTiles, int kKeyTiles, class Test>
__device__ __forceinline__ void exclude_pairs_unrolled(float (&x)[kRowTiles][kKeyTiles][4], Test test) {
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row)
        if (!test(8 * row + lane / 4, 8 * n + lane % 4 * 2 + c)) x[row / 2][n][row % 2 * 2 + c] = -kInfinity;
}

}  // namespace
}  // namespace fagen
