// The element types of q, k, v and o: how pairs are packed, and how fragments of them are multiplied.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fagen/cuda/math.h"
#include "fagen/ptx/math.h"
#include "fagen/ptx/matrix.h"

namespace fagen {
namespace {

struct Bf16 {
  using Type = __nv_bfloat16;
  static constexpr float kLargest = 3.38953139e38f;

  static __device__ __forceinline__ float value(uint16_t bits) { return __uint_as_float(uint32_t{bits} << 16); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return ptx::cvt_bf16x2(low, high); }
  static __device__ __forceinline__ bool finite(uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }
  // a * b + c of pairs.
  static __device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    return ptx::fma_bf16x2(a, b, c);
  }
  // d += a * b: 16 x 16 by 16 x 8.
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    ptx::mma_m16n8k16_bf16(d, a, b0, b1);
  }
};

struct F16 {
  using Type = __half;
  static constexpr float kLargest = 65504.0f;

  static __device__ __forceinline__ float value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ __forceinline__ uint32_t pack(float low, float high) { return ptx::cvt_f16x2(low, high); }
  static __device__ __forceinline__ bool finite(uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }
  static __device__ __forceinline__ uint32_t multiply_add(uint32_t a, uint32_t b, uint32_t c) {
    return ptx::fma_f16x2(a, b, c);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    ptx::mma_m16n8k16_f16(d, a, b0, b1);
#else
    ptx::mma_m16n8k8_f16(d, a[0], a[1], b0);
    ptx::mma_m16n8k8_f16(d, a[2], a[3], b1);
#endif
  }
};

// Of sums of a lane's row; see RowSoftmax for `half`.
template <int kTiles>
__device__ __forceinline__ bool all_finite(const float (&sums)[kTiles][4], int half) {
  float found = 0.0f;  // 0 times a finite number leaves it 0
#pragma unroll
  for (int n = 0; n < kTiles; ++n) found = fmaf(sums[n][2 * half], 0.0f, fmaf(sums[n][2 * half + 1], 0.0f, found));
  return found == 0.0f;
}
template <int kTiles>
__device__ __forceinline__ void clear(float (&sums)[kTiles][4], int half) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) sums[n][2 * half] = sums[n][2 * half + 1] = 0.0f;
}

// Sums of a row that, times `factor`, are means of such numbers. A mean is no larger than all that it is of, however their
// weights were rounded: not infinite unless its sum is.
template <class Element, int kTiles>
__device__ __forceinline__ void limit_means(float (&sums)[kTiles][4], int half, float factor) {
  float most = 0.0f;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) most = fmaxf(most, fmaxf(fabsf(sums[n][2 * half]), fabsf(sums[n][2 * half + 1])));
  if (!(most * factor > Element::kLargest)) return;
  const float limit = Element::kLargest / factor;
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 2 * half; e < 2 * half + 2; ++e)
      if (fabsf(sums[n][e]) < kInfinity) sums[n][e] = fminf(fmaxf(sums[n][e], -limit), limit);
}

}  // namespace
}  // namespace fagen
