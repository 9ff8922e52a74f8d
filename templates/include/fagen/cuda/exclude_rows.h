// The pairs of a tile that a mask excludes, of a warp's 16 rows, for masks of more than a few instructions.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Scores of pairs that `test` excludes become -inf: test(a, b)(column) says which of rows a and b it admits, a bit each. A few
// columns at a time, so that what they read is on its way together, in a loop: its code takes room in the instruction cache.
template <int kAtOnce, int kKeyTiles, class Test>
__device__ __forceinline__ void exclude_rows(float (&x)[1][kKeyTiles][4], Test test) {
  constexpr int kOfWord = 8, kWords = (kKeyTiles + kOfWord - 1) / kOfWord;
  const int lane = lane_id();
  const auto admits = test(lane / 4, lane / 4 + 8);
  uint32_t admitted[kWords] = {};
#pragma unroll
  for (int word = 0; word < kWords; ++word)
#pragma unroll kAtOnce
    for (int n = word * kOfWord; n < (word + 1) * kOfWord && n < kKeyTiles; ++n) {
      uint32_t found = 0;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const uint32_t both = admits(8 * n + lane % 4 * 2 + c);
        found |= (both & 1) << c | both >> 1 << (2 + c);
      }
      admitted[word] |= found << n % kOfWord * 4;
    }
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int bit = 0; bit < 4; ++bit)
      if (!(admitted[n / kOfWord] >> (n % kOfWord * 4 + bit) & 1)) x[0][n][bit] = -kInfinity;
}

// The same for a test of few instructions.
template <int kKeyTiles, class Test>
__device__ __forceinline__ void exclude_rows_unrolled(float (&x)[1][kKeyTiles][4], Test test) {
  const int lane = lane_id();
  const auto admits = test(lane / 4, lane / 4 + 8);
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const uint32_t both = admits(8 * n + lane % 4 * 2 + c);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if ((both >> half & 1) == 0) x[0][n][2 * half + c] = -kInfinity;
    }
}

}  // namespace
}  // namespace fagen
