// What the backward adds to the products of gemm.h: row sums, and NaN and Inf that stay where the mask puts them.
//
// An excluded pair has weight 0 and slope 0, but 0 · NaN is NaN. So where a tile of q, k or dO holds NaN or Inf, the
// products take a copy of it with zeros in their place, which changes no other sum by a bit, and add_nonfinite adds
// what they left out, pair by pair.
#pragma once
#include "fagen/cpu/math.h"
#include "fagen/cpu/pack.h"

namespace fagen {
namespace {

// The weight of an excluded pair. It adds nothing, and no weight that is merely small has its sign.
constexpr float kExcluded = -0.0f;

inline bool is_excluded(float weight) { return weight == 0.0f && __builtin_signbit(weight); }

// Whether rounding lse to float32 counts. Below, it moves a weight by 2^-15 of itself at most, and so does rounding the
// score, which is as large; scores of sound models stay far below.
inline bool is_coarse(float lse) { return abs(lse) >= 0x1p10f && abs(lse) < kInfinity; }

// a[row] · b[row] of rows r, r + 1, ... in lanes 0, 1, ..., summed in the order that gemm.h sums in: where a query sees
// one key, dO · O and dO · V are then the same number.
template <class Product, int kWords, class T>
inline vf row_products(const Tile<T>& a, const Tile<T>& b) {
  typename Product::Word a_words[kWords * kLanes], b_words[kWords * kLanes];
  pack_transposed<Product, kLanes>(a_words, kLanes, kWords * Product::kDepth, a);
  pack_transposed<Product, kLanes>(b_words, kLanes, kWords * Product::kDepth, b);
  vf sum{};
  for (int w = 0; w < kWords; ++w) sum = Product::step(sum, load(a_words + w * kLanes), load(b_words + w * kLanes));
  return sum;
}

// Copies packed words, with zeros for what is not finite.
inline void keep_finite(F32, int words, const float* from, float* to) {
  for (int n = 0; n < words; n += kLanes) {
    const vf x = load(from + n);
    store(to + n, x - x == 0.0f ? x : vf{});
  }
}
#if defined(__AVX512BF16__)
inline void keep_finite(Bf16Pairs, int words, const uint32_t* from, uint32_t* to) {
  for (int n = 0; n < words; n += kLanes) {
    const vu pairs = load(from + n);
    const vu low = (pairs & 0x7f80u) == 0x7f80u ? vu{} : pairs & 0xffffu;
    const vu high = (pairs & 0x7f800000u) == 0x7f800000u ? vu{} : pairs & 0xffff0000u;
    store(to + n, low | high);
  }
}
#endif

// sums[n][kWidth] += factor · from[r] over the admitted pairs (r, n) and the elements of from[r] that are not finite.
// The factor and the weight of a pair are at r · stride_r + n · stride_n.
template <int kWidth, class T>
inline void add_nonfinite(const Tile<T>& from, int count, const float* factors, const float* weights, int stride_r,
                          int stride_n, float* sums) {
  for (int r = 0; r < from.rows; ++r)
    for (int d = 0; d < from.width; ++d) {
      const float x = load_floats(from.data + r * from.stride_row + d * from.stride_d, 1, 1)[0];
      if (x - x == 0.0f) continue;
      for (int n = 0; n < count; ++n) {
        const int pair = r * stride_r + n * stride_n;
        if (!is_excluded(weights[pair])) sums[n * kWidth + d] += factors[pair] * x;
      }
    }
}

// Writes `rows` rows, multiplied by `factor`.
template <int kStride, class T>
inline void write_scaled(const float* from, float factor, int rows, int width, T* to, int64_t stride_row,
                         int64_t stride_d) {
  for (int r = 0; r < rows; ++r, from += kStride, to += stride_row)
    for (int d = 0; d < width; d += kLanes)
      store_floats(to + d * stride_d, stride_d, width - d, load(from + d) * factor);
}

}  // namespace
}  // namespace fagen
