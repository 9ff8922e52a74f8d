// Which pairs of a tile dropout keeps: a bit a pair, drawn for blocks of 16 rows by 16 keys.
#pragma once
#include "fagen/cpu/gemm.h"
#include "fagen/philox.h"

namespace fagen {
namespace {

template <>
struct UpperHalf<vu> {
  static inline vu of(vu a, uint32_t b) {
#if defined(__AVX512F__)
    const __m512i factor = _mm512_set1_epi32(static_cast<int32_t>(b));
    const vu even = (vu)_mm512_maskz_mul_epu32(0xff, (__m512i)a, factor);
    const vu odd = (vu)_mm512_maskz_mul_epu32(0xff, _mm512_maskz_srli_epi64(0xff, (__m512i)a, 32), factor);
    return shuffle<1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31>(even, odd);
#elif defined(__AVX2__)
    const __m256i factor = _mm256_set1_epi32(static_cast<int32_t>(b));
    const vu even = (vu)_mm256_mul_epu32((__m256i)a, factor);
    const vu odd = (vu)_mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
    return shuffle<1, 9, 3, 11, 5, 13, 7, 15>(even, odd);
#else
    vu upper{};
    for (int lane = 0; lane < kLanes; ++lane) upper[lane] = UpperHalf<uint32_t>::of(a[lane], b);
    return upper;
#endif
  }
};

// Of a tile of up to kRows rows and kKeys keys.
template <int kRows, int kKeys>
class KeptPairs {
 public:
  // Rows [i, i + rows) against keys [j, j + keys), j being a multiple of kLanes; `head` counts heads through the batch.
  void draw(const Dropout& dropout, int64_t head, int32_t i, int32_t rows, int32_t j, int32_t keys) {
    i_ = i;
    block_ = j / 16;
    const int32_t blocks = (j + keys + 15) / 16 - block_;
    if (dropout.threshold == 0) {
      for (int32_t r = 0; r < rows; ++r)
        for (int32_t n = 0; n < blocks; ++n) bits_[r][n] = 0xffff;
      return;
    }
    const PhiloxKey key = dropout_key(dropout);
    for (int32_t row = i / 16 * 16; row < i + rows; row += 16)
      for (int32_t n = 0; n < blocks; ++n) {
        uint16_t bits[16];
        draw_block(key, dropout.threshold, static_cast<uint32_t>(head), row / 16, block_ + n, bits);
        for (int32_t r = 0; r < 16; ++r)
          if (row + r >= i && row + r < i + rows) bits_[row + r - i][n] = bits[r];
      }
  }

  // Of row i and the kLanes keys from j on, a multiple of kLanes.
  vi at(int32_t i, int32_t j) const {
    return (broadcast(static_cast<int32_t>(bits_[i - i_][j / 16 - block_]) >> j % 16) >> lane_index() & 1) != 0;
  }

 private:
  // Bit c of bits[r] says whether the pair of row r and key c is kept. A call of the generator has two rows, r and r + 8,
  // and of each four keys, c, c + 1, c + 8 and c + 9.
  static void draw_block(PhiloxKey key, uint32_t threshold, uint32_t head, int32_t row_block, int32_t key_block,
                         uint16_t (&bits)[16]) {
    uint32_t kept[2][32];
    for (int call = 0; call < 32; call += kLanes) {
      const vu calls = (vu)(lane_index() + call), shift = (calls & 3u) * 2u;
      const PhiloxWords<vu> words = philox<vu>(
          {calls, vu{} + static_cast<uint32_t>(row_block), vu{} + static_cast<uint32_t>(key_block), vu{} + head}, key);
      store(kept[0] + call, (pair_of(words.x, threshold) | pair_of(words.z, threshold) << 8) << shift);
      store(kept[1] + call, (pair_of(words.y, threshold) | pair_of(words.w, threshold) << 8) << shift);
    }
    for (int r = 0; r < 16; ++r) {
      const uint32_t* const calls = kept[r / 8] + r % 8 * 4;
      bits[r] = static_cast<uint16_t>(calls[0] | calls[1] | calls[2] | calls[3]);
    }
  }

  // Bit 0 for the lower half of a word, bit 1 for the upper.
  static vu pair_of(vu word, uint32_t threshold) {
    return ((vu)((word & 0xffffu) >= threshold) & 1u) | ((vu)((word >> 16) >= threshold) & 2u);
  }

  int32_t i_, block_;
  uint16_t bits_[kRows][kKeys / 16 + 2];
};

// Zeros for the weights of pairs that are dropped: of rows from i on, and keys from j on, in weights[rows][kStride].
template <int kStride, class Kept>
inline void drop_weights(F32, const Kept& kept, int32_t i, int32_t j, int rows, int keys, float* weights) {
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < keys; n += kLanes) {
      float* const at = weights + r * kStride + n;
      store(at, kept.at(i + r, j + n) ? load(at) : vf{});
    }
}
#if defined(__AVX512BF16__)
// A word has two keys.
template <int kStride, class Kept>
inline void drop_weights(Bf16Pairs, const Kept& kept, int32_t i, int32_t j, int rows, int keys, uint32_t* weights) {
  for (int r = 0; r < rows; ++r)
    for (int n = 0; n < keys; n += 2 * kLanes) {
      uint32_t* const at = weights + r * (kStride / 2) + n / 2;
      const vi first = kept.at(i + r, j + n), second = kept.at(i + r, j + n + kLanes);
      const vu lower = (vu)shuffle<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(first, second);
      const vu upper = (vu)shuffle<1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31>(first, second);
      store(at, load(at) & ((lower & 0xffffu) | (upper & 0xffff0000u)));
    }
}
#endif

}  // namespace
}  // namespace fagen
