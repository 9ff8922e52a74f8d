// Elements of a param that are the same for all pairs of a diagonal, in shared memory, for the 64 rows of a warpgroup and
// kKeys keys: that of the first row and the last key, then of each row further down or key further up.
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// As words, whatever they are.
__device__ __forceinline__ uint32_t band_word(float x) { return __float_as_uint(x); }
__device__ __forceinline__ uint32_t band_word(int32_t x) { return static_cast<uint32_t>(x); }
__device__ __forceinline__ uint32_t band_word(bool x) { return x; }
__device__ __forceinline__ void from_word(float& x, uint32_t word) { x = __uint_as_float(word); }
__device__ __forceinline__ void from_word(int32_t& x, uint32_t word) { x = static_cast<int32_t>(word); }
__device__ __forceinline__ void from_word(bool& x, uint32_t word) { x = word != 0; }

// A lane's part of one: of pairs in row 8 · row and column 8 · n + c, c being 0 or 1, from its first pair on.
template <class T, int kKeys>
class Band {
 public:
  static constexpr int kBytes = 4 * (64 + kKeys);

  __device__ __forceinline__ explicit Band(uint32_t place)
      : place_(place + 4 * (kKeys - 1 + warp_id() % 4 * 16 + lane_id() / 4 - lane_id() % 4 * 2)) {}

  __device__ __forceinline__ void read(int n, int c, int row) {
    words_[n + 1 - row][c] = ptx::ld_shared_4(place_ + 4 * (8 * row - 8 * n - c));
  }
  // Of a pair that has been read.
  __device__ __forceinline__ T of(int n, int c, int row) const {
    T x;
    from_word(x, words_[n + 1 - row][c]);
    return x;
  }

 private:
  uint32_t place_;
  uint32_t words_[kKeys / 8 + 1][2];
};

}  // namespace
}  // namespace fagen
