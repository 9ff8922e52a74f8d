// Dropout of weights as products by mma.sync leave them in registers. A call of the generator gives the numbers of the 8
// pairs that a lane has of 16 query rows by 16 keys (docs/kernel.md).
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/philox.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// The pairs of a head's query rows from a multiple of 16 on.
struct Dropping {
  PhiloxKey key;
  uint32_t threshold, head, row_block;

  __device__ __forceinline__ PhiloxWords<uint32_t> numbers(uint32_t call, int rows, int key_block) const {
    return philox<uint32_t>({call, row_block + rows, static_cast<uint32_t>(key_block), head}, key);
  }

  // Zeros for the weights that are dropped of row tile `rows` and 16 keys: a word has the weights of two adjacent keys,
  // words 0 and 2 are of row lane / 4 and words 1 and 3 of the one 8 further down, words 2 and 3 of keys 8 further on.
  __device__ __forceinline__ void drop(uint32_t* weights, int rows, int key_block) const {
    if (threshold == 0) return;
    const PhiloxWords<uint32_t> words = numbers(lane_id(), rows, key_block);
    weights[0] &= kept(words.x);
    weights[1] &= kept(words.y);
    weights[2] &= kept(words.z);
    weights[3] &= kept(words.w);
  }

  // All ones in the halves of a word that are kept.
  __device__ __forceinline__ uint32_t kept(uint32_t word) const {
    return ((word & 0xffffu) >= threshold ? 0xffffu : 0u) | (word >> 16 >= threshold ? 0xffff0000u : 0u);
  }
};

// Whether a pair is kept: one alone, where there are few.
__device__ __noinline__ bool keeps_pair(const Dropout& dropout, int64_t head, int32_t i, int32_t j) {
  const PhiloxWords<uint32_t> words = philox<uint32_t>(
      {static_cast<uint32_t>(i % 8 * 4 + j % 8 / 2), static_cast<uint32_t>(i / 16), static_cast<uint32_t>(j / 16),
       static_cast<uint32_t>(head)},
      dropout_key(dropout));
  const uint32_t word = i / 8 % 2 == 0 ? (j / 8 % 2 == 0 ? words.x : words.z) : (j / 8 % 2 == 0 ? words.y : words.w);
  return (j % 2 == 0 ? word & 0xffffu : word >> 16) >= dropout.threshold;
}

// Of the rows from i, a multiple of 16, on; `key` is dropout_key(dropout).
__device__ __forceinline__ Dropping dropping(const Dropout& dropout, PhiloxKey key, int64_t heads, int32_t b, int32_t h, int32_t i) {
  return {key, dropout.threshold, static_cast<uint32_t>(b * heads + h), static_cast<uint32_t>(i) / 16};
}

// The pairs of a tile that are kept, a bit for each of a lane's, of key rows by query columns: transposed. Of 16 by 16 pairs
// a lane's numbers are in two calls, and these have the numbers of the lane of the next key or of the one before too: each
// of the two makes one.
template <int kRowTiles, int kTiles>
class KeptColumns {
  static constexpr int kWords = (kRowTiles * (kTiles / 2) + 3) / 4;

 public:
  static constexpr int kBytes = 4 * 128 * kWords;  // of all threads of a warpgroup

  // Of keys from j on, a multiple of 16, and the query rows of `dropping`. All lanes call it.
  __device__ __forceinline__ void draw(const Dropping& dropping, int32_t j) {
    if (dropping.threshold == 0) {
#pragma unroll
      for (int word = 0; word < kWords; ++word) words_[word] = ~0u;
      return;
    }
    const int lane = lane_id(), odd = lane / 4 % 2;
    const uint32_t call = (lane % 4 * 2 + odd) * 4 + lane / 8;
#pragma unroll
    for (int word = 0; word < kWords; ++word) words_[word] = 0;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int m = 0; m < kTiles / 2; ++m) {
        const PhiloxWords<uint32_t> numbers = dropping.numbers(call, m, j / 16 + r);
        // Bit 4 · (key is odd) + 2 · (key is 8 further on) + (row is 8 further down).
        uint32_t mine = bits(numbers.x, dropping.threshold) | bits(numbers.y, dropping.threshold) << 1 |
                        bits(numbers.z, dropping.threshold) << 2 | bits(numbers.w, dropping.threshold) << 3;
        const uint32_t other = __shfl_xor_sync(~0u, mine, 4) >> 4 * odd & 0xfu;
        mine = mine >> 4 * odd & 0xfu;
        // Those of the even row first.
        words_[(r * (kTiles / 2) + m) / 4] |= (odd != 0 ? other | mine << 4 : mine | other << 4)
                                              << (r * (kTiles / 2) + m) % 4 * 8;
      }
  }

  // Of a lane's pair in row 8 · row and column 8 · n + c from its first on.
  __device__ __forceinline__ bool kept(int row, int n, int c) const {
    const int block = row / 2 * (kTiles / 2) + n / 2;
    return (words_[block / 4] >> (block % 4 * 8 + 4 * c + row % 2 * 2 + n % 2) & 1) != 0;
  }

  // To another warpgroup, whose threads have the same pairs. `shared` has room for kBytes.
  __device__ __forceinline__ void store(uint32_t shared) const {
#pragma unroll
    for (int word = 0; word < kWords; ++word) ptx::st_shared_4(place_of(shared, word), words_[word]);
  }
  __device__ __forceinline__ void load(uint32_t shared) {
#pragma unroll
    for (int word = 0; word < kWords; ++word) words_[word] = ptx::ld_shared_4(place_of(shared, word));
  }

 private:
  static __device__ __forceinline__ uint32_t place_of(uint32_t shared, int word) {
    return shared + 4 * (128 * word + threadIdx.x % 128);
  }
  static __device__ __forceinline__ uint32_t bits(uint32_t word, uint32_t threshold) {
    return ((word & 0xffffu) >= threshold ? 1u : 0u) | (word >> 16 >= threshold ? 16u : 0u);
  }

  uint32_t words_[kWords];
};

}  // namespace
}  // namespace fagen
