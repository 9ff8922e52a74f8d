// The pairs of a tile that a mask excludes.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Scores of pairs that `test(row, column)` excludes become -inf. The test is asked in a loop that is not unrolled, into a
// bit for each of a lane's scores: its code is seldom run, but takes room in the instruction cache.
template <int kRowTiles, int kKeyTiles, class Test>
__device__ __forceinline__ void exclude_pairs(float (&x)[kRowTiles][kKeyTiles][4], Test test) {
  constexpr int kBits = 4 * kRowTiles, kOfWord = 32 / kBits, kWords = (kKeyTiles + kOfWord - 1) / kOfWord;
  const int lane = lane_id();
  uint32_t admitted[kWords] = {};
#pragma unroll
  for (int word = 0; word < kWords; ++word)
#pragma unroll 1
    for (int n = word * kOfWord; n < (word + 1) * kOfWord && n < kKeyTiles; ++n) {
      uint32_t found = 0;
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int row = 0; row < 2 * kRowTiles; ++row)
          if (test(8 * row + lane / 4, 8 * n + lane % 4 * 2 + c)) found |= 1u << (2 * row + c);
      admitted[word] |= found << n % kOfWord * kBits;
    }
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int bit = 0; bit < kBits; ++bit)
      if (!(admitted[n / kOfWord] >> (n % kOfWord * kBits + bit) & 1)) x[bit / 4][n][bit % 4] = -kInfinity;
}

}  // namespace
}  // namespace fagen
