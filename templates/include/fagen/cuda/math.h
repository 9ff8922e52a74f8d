// What expressions call, for one float or integer: the functions of CUDA's library, and those that the expression
// language defines otherwise. `//` and `%` floor; min and max take the first argument on ties, and let NaN through.
#pragma once
#include <cstdint>

#include "fagen/ptx/math.h"

namespace fagen {
namespace {

constexpr float kInfinity = __builtin_huge_valf();

template <class T>
__device__ __forceinline__ T min(T a, T b) {
  return a <= b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T max(T a, T b) {
  return a >= b || a != a ? a : b;
}
template <class T>
__device__ __forceinline__ T abs(T x) {
  return x < T{0} ? -x : x;
}
template <>
__device__ __forceinline__ float abs(float x) {
  return ::fabsf(x);
}

__device__ __forceinline__ float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
__device__ __forceinline__ float exp(float x) { return ::expf(x); }
__device__ __forceinline__ float exp2(float x) { return ::exp2f(x); }
__device__ __forceinline__ float log(float x) { return ::logf(x); }
__device__ __forceinline__ float log2(float x) { return ::log2f(x); }
// To a millionth of itself, without a branch. Near 0, where 1 - 2 / (1 + e^2x) loses all its bits, by its series.
__device__ __forceinline__ float tanh(float x) {
  const float most = ::fabsf(x), square = x * x;
  const float far = ::fmaf(-2.0f, ptx::rcp(1.0f + ptx::ex2(most * 2.88539008f)), 1.0f);
  const float near = ::fmaf(x * square, ::fmaf(square, 0.133333333f, -0.333333333f), x);
  return most < 0.125f ? near : ::copysignf(far, x);
}
// factor · tanh(x) + more for |x| <= kTanhNear, to two units of the last place: a sixth of the time that an exponential and a
// reciprocal take. The polynomial is the one with the least relative error of those that begin with x.
constexpr float kTanhNear = 0.8f;
__device__ __forceinline__ float tanh_near(float x, float factor, float more) {
  const float square = x * x;
  float sum = ::fmaf(square, factor * -0.00441088434f, factor * 0.0191907603f);
  sum = ::fmaf(square, sum, factor * -0.0531761758f);
  sum = ::fmaf(square, sum, factor * 0.133227661f);
  sum = ::fmaf(square, sum, factor * -0.333328664f);
  return ::fmaf(x, ::fmaf(square, sum, factor), more);
}
__device__ __forceinline__ float sin(float x) { return ::sinf(x); }
__device__ __forceinline__ float cos(float x) { return ::cosf(x); }
__device__ __forceinline__ float sqrt(float x) { return ::sqrtf(x); }
__device__ __forceinline__ float floor(float x) { return ::floorf(x); }
__device__ __forceinline__ float pow(float a, float b) { return ::powf(a, b); }
__device__ __forceinline__ float sigmoid(float x) {
  const float e = ::expf(-::fabsf(x));  // never overflows
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
__device__ __forceinline__ float softplus(float x) { return (x > 0.0f ? x : 0.0f) + ::log1pf(::expf(-::fabsf(x))); }

// ---- // and %, which floor; a divisor of 0 gives 0 among integers ----

template <class T>
__device__ __forceinline__ T floor_div(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<T>(0 - static_cast<uint64_t>(a));
  const T quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
template <class T>
__device__ __forceinline__ T floor_mod(T a, T b) {
  if (b == 0 || b == -1) return 0;
  const T rest = a % b;
  return rest + (rest != 0 && (rest < 0) != (b < 0) ? b : 0);
}

// As Python's: the remainder is exact and has the divisor's sign.
template <>
__device__ __forceinline__ float floor_mod(float a, float b) {
  const float rest = ::fmodf(a, b);
  if (rest != 0.0f) return (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
  return rest != rest ? rest : ::copysignf(0.0f, b);
}
template <>
__device__ __forceinline__ float floor_div(float a, float b) {
  if (b == 0.0f) return a / b;
  const float rest = ::fmodf(a, b);
  const float quotient = (a - rest) / b - (rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? 1.0f : 0.0f);
  const float whole = ::floorf(quotient);
  return quotient - whole > 0.5f ? whole + 1.0f : whole;
}

}  // namespace
}  // namespace fagen
