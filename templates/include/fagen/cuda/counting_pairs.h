// The pairs of a tile that count, a bit for each of a lane's, of key rows by query columns.
#pragma once
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// What an excluded pair weighs. It adds nothing, and no weight of another has its sign.
constexpr float kExcluded = -0.0f;
constexpr uint32_t kExcludedBits = 0x8000;  // the same in 16 bits

template <int kRowTiles, int kTiles>
class CountingPairs {
 public:
  // All of them count, or none of which `test(row, column)` says otherwise: it is asked in a loop that is not unrolled.
  __device__ __forceinline__ void all() {
#pragma unroll
    for (int word = 0; word < kWords; ++word) words_[word] = ~0u;
  }
  template <class Test>
  __device__ __forceinline__ void ask(Test test) {
    const int lane = lane_id();
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      words_[word] = 0;
#pragma unroll 1
      for (int n = word * kOfWord; n < (word + 1) * kOfWord && n < kTiles; ++n) {
        uint32_t found = 0;
#pragma unroll
        for (int c = 0; c < 2; ++c)
#pragma unroll
          for (int row = 0; row < 2 * kRowTiles; ++row)
            if (test(8 * row + lane / 4, 8 * n + lane % 4 * 2 + c)) found |= 1u << (2 * row + c);
        words_[word] |= found << n % kOfWord * kBits;
      }
    }
  }

  // Of a lane's pair in row 8 · row and column 8 · n + c from its first on.
  __device__ __forceinline__ bool count(int row, int n, int c) const {
    return (words_[n / kOfWord] >> (n % kOfWord * kBits + 2 * row + c) & 1) != 0;
  }

  // Weights and slopes of pairs that do not count.
  __device__ __forceinline__ void exclude(float (&weights)[kRowTiles][kTiles][4], float (&slopes)[kRowTiles][kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (!count(row, n, c)) {
            weights[row / 2][n][row % 2 * 2 + c] = kExcluded;
            slopes[row / 2][n][row % 2 * 2 + c] = 0.0f;
          }
  }

 private:
  static constexpr int kBits = 4 * kRowTiles, kOfWord = 32 / kBits, kWords = (kTiles + kOfWord - 1) / kOfWord;
  uint32_t words_[kWords];
};

}  // namespace
}  // namespace fagen
