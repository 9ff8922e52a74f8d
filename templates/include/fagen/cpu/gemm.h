// Products of small matrices in registers: C[rows × columns] (+)= A[rows × steps] · B[steps × columns].
//
// A kind of product (F32, Bf16Pairs) says what one step along the inner dimension is:
//   F32        one float of A times a vector of floats of B                       inner dimension = steps
//   Bf16Pairs  two bf16 of A (one 32-bit word, the lower half first) times pairs  inner dimension = 2 · steps
//              of B, products and sums in float32
// Words of A are addressed by two compile-time strides, so A may be row-major (row stride = its width, step stride 1)
// or transposed (row stride 1, step stride = its width). B is one panel: [steps][kVectors · kLanes] words, contiguous
// (pack.h makes them), or, given its row stride kBStride, some columns of a wider matrix. C is float32 with row stride
// `ldc`. Nothing here needs alignment.
//
// Register budget: kRows · kVectors accumulators, kVectors of B, one of A.
//   AVX-512 (32 registers): 6×4, 8×3, 12×2;  16 registers: 6×2, 4×3, 3×4.
#pragma once
#include "fagen/cpu/simd.h"

namespace fagen {
namespace {

struct F32 {
  static constexpr int kDepth = 1;  // elements of the inner dimension a word
  using Word = float;
  using Vector = vf;
  static inline __attribute__((always_inline)) vf step(vf c, float a, vf b) { return c + a * b; }
  static inline __attribute__((always_inline)) vf step(vf c, vf a, vf b) { return c + a * b; }  // lane by lane
};

#if defined(__AVX512BF16__)
struct Bf16Pairs {
  static constexpr int kDepth = 2;
  using Word = uint32_t;
  using Vector = vu;
  static inline __attribute__((always_inline)) vf step(vf c, uint32_t a, vu b) {
    return step(c, (vu)_mm512_set1_epi32(int32_t(a)), b);
  }
  static inline __attribute__((always_inline)) vf step(vf c, vu a, vu b) {
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// One register tile: C[kRows × kVectors·kLanes]. kAdd: += rather than =; the sum over the steps is made first and then
// added, so that a sum over many calls loses no more than over few.
template <class Product, int kRows, int kVectors, int kRowStride, int kStepStride, bool kAdd,
          int kBStride = kVectors * kLanes>
inline void multiply_tile(int steps, const typename Product::Word* a, const typename Product::Word* b, float* c,
                          int ldc) {
  vf sum[kRows][kVectors];
  FAGEN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FAGEN_UNROLL
    for (int v = 0; v < kVectors; ++v) sum[r][v] = vf{};
  }
  for (int t = 0; t < steps; ++t) {
    typename Product::Vector bt[kVectors];
    FAGEN_UNROLL
    for (int v = 0; v < kVectors; ++v) bt[v] = load(b + v * kLanes);
    FAGEN_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename Product::Word ar = a[r * kRowStride];
      FAGEN_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Product::step(sum[r][v], ar, bt[v]);
    }
    a += kStepStride;
    b += kBStride;
  }
  FAGEN_UNROLL
  for (int r = 0; r < kRows; ++r) {
    FAGEN_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + r * ldc + v * kLanes;
      store(to, kAdd ? load(to) + sum[r][v] : sum[r][v]);
    }
  }
}

// C[rows × panels·kVectors·kLanes]; `rows` a multiple of kRows, B's panels `b_panel` words apart. A panel of B is
// used for all rows before the next, so it should fit the first-level cache.
template <class Product, int kRows, int kVectors, int kRowStride, int kStepStride, bool kAdd,
          int kBStride = kVectors * kLanes>
inline void multiply(int rows, int panels, int steps, const typename Product::Word* a, const typename Product::Word* b,
                     int b_panel, float* c, int ldc) {
  for (int panel = 0; panel < panels; ++panel)
    for (int r = 0; r < rows; r += kRows)
      multiply_tile<Product, kRows, kVectors, kRowStride, kStepStride, kAdd, kBStride>(
          steps, a + r * kRowStride, b + panel * b_panel, c + r * ldc + panel * kVectors * kLanes, ldc);
}

}  // namespace
}  // namespace fagen
