// The products of P and V where V holds what a plain product cannot take: NaN and Inf, which must not reach rows that
// the mask keeps from their key (0 · NaN is NaN), and numbers so large that their sum overflows before it is divided by
// the total. Both are rare and told from the packed tile's magnitude; speed is no object here.
#pragma once
#include "fagen/cpu/pack.h"

namespace fagen {
namespace {

// From here on (2^95) a sum of 2^32 values may overflow, and V is scaled by kValueScale first.
constexpr uint32_t kLargeBits = 0x6f000000u;
constexpr float kValueScale = 0x1p-32f;

// x, brought to between -most and most; NaN stays.
inline vf within(float most, vf x) {
  const vf least = broadcast(-most);
  return -larger(least, -larger(least, x));
}

// Element `at` along a product's inner dimension, of words `stride` apart.
inline float element(F32, const float* words, int at, int stride) { return words[at * stride]; }
#if defined(__AVX512BF16__)
inline float element(Bf16Pairs, const uint32_t* words, int at, int stride) {
  return widen_bf16(vu{} + (words[at / 2 * stride] >> at % 2 * 16 & 0xffffu))[0];
}
#endif

inline vf finite_words(F32, vf words) { return ((vu)words & 0x7fffffffu) >= kInfinityBits ? vf{} : words; }
#if defined(__AVX512BF16__)
inline vu finite_words(Bf16Pairs, vu words) {
  const vu low = words & 0xffffu, high = words & 0xffff0000u;
  const vi low_is_finite = (low & 0x7fffu) < 0x7f80u, high_is_finite = (high & 0x7fffffffu) < kInfinityBits;
  return (low_is_finite ? low : vu{}) | (high_is_finite ? high : vu{});
}
#endif

// A copy with zeros where elements are NaN or Inf.
template <class Product>
inline void copy_finite(typename Product::Word* to, const typename Product::Word* from, int words) {
  for (int n = 0; n < words; n += kLanes) store(to + n, finite_words(Product{}, load(from + n)));
}

// What copy_finite left out of o[rows][kPanels · kPanel] += weights[rows][kStride] · V, for the keys from `first` to
// `last` (not in it) of a packed tile of V ([kPanels][kStride][kPanel]): added to the rows that admit its key. weights
// and admitted[rows][kStride] count from `first`.
template <class Product, int kStride, int kPanels, int kPanel>
inline void add_nonfinite(int rows, int first, int last, const typename Product::Word* weights, const int32_t* admitted,
                          const typename Product::Word* values, float* o) {
  constexpr int kWords = kStride / Product::kDepth, kWidth = kPanels * kPanel;
  for (int key = first; key < last; ++key)
    for (int d = 0; d < kWidth; ++d) {
      const float value = element(Product{}, values + d / kPanel * kWords * kPanel + d % kPanel, key, kPanel);
      if (value - value == 0.0f) continue;
      for (int r = 0; r < rows; ++r)
        if (admitted[r * kStride + key - first])
          o[r * kWidth + d] += element(Product{}, weights + r * kWords, key - first, 1) * value;
    }
}

inline void scale_words(F32, float* words, int count, float scale) {
  for (int n = 0; n < count; n += kLanes) store(words + n, load(words + n) * scale);
}
#if defined(__AVX512BF16__)
inline void scale_words(Bf16Pairs, uint32_t* words, int count, float scale) {
  for (int n = 0; n < count; n += kLanes) {
    const vu pairs = load(words + n);
    const vf low = widen_bf16(pairs & 0xffffu) * scale, high = widen_bf16(pairs >> 16) * scale;
    store(words + n, narrow_bf16(low) | narrow_bf16(high) << 16);
  }
}
#endif

}  // namespace
}  // namespace fagen
