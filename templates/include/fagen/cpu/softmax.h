// The running softmax of a block of rows, in natural units. After the keys seen so far, x being their scores and m the
// largest of them, a row's state is
//
//   largest   m            (-inf before the first key)
//   total     Σ exp(x - m)  by lanes
//   o         Σ exp(x - m) v
//
// x is rounded to float32 before m is subtracted, and the difference is exact where it matters: scores of any
// magnitude give the right weights.
#pragma once
#include "fagen/cpu/gemm.h"

namespace fagen {
namespace {

// e^x for x <= 0, and NaN for NaN; e^0 is 1 exactly and e^-inf 0. The error is below 3 units in the last place of 1, so
// that a weight beside one of 1 is as good as any; a small weight itself has |x| times 2^-24 more.
inline vf exp_weight(vf x) {
#if defined(__AVX512F__)
  // 2^t, its whole part by the exponent and the rest, in [0, 1), by a minimax polynomial that is 1 at 0.
  const vf t = x * 1.44269504088896341f;
  const vf f = (vf)_mm512_maskz_reduce_ps(0xffff, (__m512)t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  vf p = 0.009017031f + f * 0.00186713f;
  p = 0.055799913f + f * p;
  p = 0.24016444f + f * p;
  p = 0.6931513f + f * p;
  p = 1.0f + f * p;
  return (vf)_mm512_maskz_scalef_ps(0xffff, (__m512)p, (__m512)t);
#else
  x = larger(broadcast(-104.0f), x);
  // n = x / ln 2 to the nearest integer: 1.5 · 2^23 leaves no room for a fraction.
  const vf shifted = x * 1.44269504088896341f + 12582912.0f;
  const vf n = shifted - 12582912.0f;
#if defined(__FMA__)
  const vf r = x - n * 0.693147180559945309f;
#else
  const vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
#endif
  vf p = 0.041890156f + r * 0.008312521f;  // minimax on ±ln 2 / 2, with the first two coefficients held at 1
  p = 0.16667114f + r * p;
  p = 0.4999923f + r * p;
  p = 1.0f + r * p;
  p = 1.0f + r * p;
  // 2^(n + 64) and 2^-64 are in range where 2^n is not, and the product is rounded once. The lowest bits of `shifted`
  // are n.
  return p * (vf)(((vi)shifted + 64 + 127) << 23) * 0x1p-64f;  // not added to the exponent of p: NaN stays NaN
#endif
}

// The weights of a vector of words' keys, stored as A of the product with V. Returns their sum, by lanes.
inline vf store_weights(F32, float* to, const float* x, float m) {
  const vf weights = exp_weight(load(x) - m);
  store(to, weights);
  return weights;
}
#if defined(__AVX512BF16__)
inline vf store_weights(Bf16Pairs, uint32_t* to, const float* x, float m) {
  const vf first = exp_weight(load(x) - m), second = exp_weight(load(x + kLanes) - m);
  store(to, (vu)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first));
  return first + second;
}
#endif

// Takes the scores x[rows][kStride] of `keys` keys (whole vectors of words) into the state, and leaves their weights
// exp(x - m) in weights[rows][kStride / Product::kDepth]. most[r] holds, by lanes, the largest x of row r. The state is
// largest[rows], total[rows][kLanes] and o[rows][kWidth].
template <class Product, int kStride, int kWidth>
inline void weigh(int rows, int keys, const float* x, const vf* most, float* largest, float* total, float* o,
                  typename Product::Word* weights) {
  for (int r = 0; r < rows; ++r) {  // apart from the next loop, so that the rows' reductions overlap
    const float now = max_lanes(most[r]);
    if (now > largest[r]) {
      if (largest[r] > -__builtin_inff()) {  // otherwise all is zero still
        const vf decay = exp_weight(broadcast(largest[r] - now));
        store(total + r * kLanes, load(total + r * kLanes) * decay);
        for (int d = 0; d < kWidth; d += kLanes) store(o + r * kWidth + d, load(o + r * kWidth + d) * decay);
      }
      largest[r] = now;
    }
  }
  for (int r = 0; r < rows; ++r) {
    // Where no key has a score above -inf yet, any finite reference makes all weights 0.
    const float m = largest[r] == -__builtin_inff() ? 0.0f : largest[r];
    vf sum{};
    for (int n = 0; n < keys; n += Product::kDepth * kLanes)
      sum += store_weights(Product{}, weights + (r * kStride + n) / Product::kDepth, x + r * kStride + n, m);
    store(total + r * kLanes, load(total + r * kLanes) + sum);
  }
}

}  // namespace
}  // namespace fagen
