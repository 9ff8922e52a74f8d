// Elementary functions on vectors of float32 and on one float, with the same result for both.
//
// exp, log, tanh and sigmoid are within 2 units in the last place over all of float32; infinities, NaN, zeros and
// denormals give what IEEE arithmetic gives. `//` and `%` floor, as the expression language says. A function that
// hardly any attention calls per pair (pow, sin, cos, real %) goes through the C library lane by lane.
#pragma once
#include <cmath>
#include <cstdint>

#include "fagen/cpu/simd.h"

// Vectors of 64-bit numbers are wider than a register; every function here is inlined, so no ABI is at stake.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace fagen {
namespace {

typedef int64_t vl __attribute__((vector_size(8 * kLanes)));
typedef double vd __attribute__((vector_size(8 * kLanes)));

constexpr float kInfinity = __builtin_inff();
constexpr float kNan = __builtin_nanf("");

// ---- a truth value in every lane, lane by lane choice, conversions ----

inline vi all_lanes(bool condition) { return vi{} - static_cast<int32_t>(condition); }

inline vl broadcast(int64_t x) { return x - vl{}; }

inline vf select(vi condition, vf yes, vf no) { return condition ? yes : no; }
inline vi select(vi condition, vi yes, vi no) { return condition ? yes : no; }
inline vl select(vi condition, vl yes, vl no) { return __builtin_convertvector(condition, vl) ? yes : no; }

inline vf to_real(vi x) { return __builtin_convertvector(x, vf); }
inline vf to_real(vl x) { return __builtin_convertvector(x, vf); }
inline vl widen(vi x) { return __builtin_convertvector(x, vl); }
inline vi narrow(vl mask) { return __builtin_convertvector(mask, vi); }  // of a comparison: 0 and -1 stay

// ---- minimum, maximum (the first argument on ties; NaN from either comes through), absolute value ----

inline vf min(vf a, vf b) { return ((a <= b) | (a != a)) ? a : b; }
inline vf max(vf a, vf b) { return ((a >= b) | (a != a)) ? a : b; }
inline vi min(vi a, vi b) { return a <= b ? a : b; }
inline vi max(vi a, vi b) { return a >= b ? a : b; }
inline vl min(vl a, vl b) { return a <= b ? a : b; }
inline vl max(vl a, vl b) { return a >= b ? a : b; }
inline float min(float a, float b) { return a <= b || a != a ? a : b; }
inline float max(float a, float b) { return a >= b || a != a ? a : b; }
inline int32_t min(int32_t a, int32_t b) { return a <= b ? a : b; }
inline int32_t max(int32_t a, int32_t b) { return a >= b ? a : b; }
inline int64_t min(int64_t a, int64_t b) { return a <= b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a >= b ? a : b; }

inline vf abs(vf x) { return (vf)((vi)x & 0x7fffffff); }
inline vi abs(vi x) { return x < 0 ? -x : x; }
inline vl abs(vl x) { return x < 0 ? -x : x; }
inline float abs(float x) { return __builtin_fabsf(x); }
inline int32_t abs(int32_t x) { return x < 0 ? -x : x; }
inline int64_t abs(int64_t x) { return x < 0 ? -x : x; }

// ---- exp, log, tanh, sigmoid, sqrt, floor ----

// 2^n · p for n in [-252, 254]: two steps, so that a denormal result is rounded once.
inline vf scale_by_power(vf p, vi n) {
  const vi half = n >> 1;
  return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

// e^x, and in `low` what rounding it left out.
inline vf exp(vf x, vf& low) {
  const vf inside = x > 89.0f ? broadcast(89.0f) : (x < -104.0f ? broadcast(-104.0f) : x);  // NaN stays
  const vf n = inside * 1.44269504088896341f + 12582912.0f - 12582912.0f;  // nearest integer: 1.5 · 2^23 has no fraction
  vf r = inside - n * 0.693359375f;                                        // exact: 9 bits times at most 8
  r = r + n * 2.12194440e-4f;
  vf p = 1.3981999507e-3f + r * 1.9875691500e-4f;
  p = 8.3334519073e-3f + r * p;
  p = 4.1665795894e-2f + r * p;
  p = 1.6666665459e-1f + r * p;
  p = 5.0000001201e-1f + r * p;
  const vf above_one = r + r * r * p;
  p = 1.0f + above_one;
  // A NaN has no integer part: keep the conversion away from it, and let the product carry it.
  const vi power = __builtin_convertvector(n == n ? n : vf{}, vi);
  low = scale_by_power(above_one - (p - 1.0f), power);
  return scale_by_power(p, power);
}

inline vf exp(vf x) {
  vf low;
  return exp(x, low);
}

// 2^x
inline vf exp2(vf x) {
  const vf inside = x > 129.0f ? broadcast(129.0f) : (x < -151.0f ? broadcast(-151.0f) : x);
  const vf n = inside + 12582912.0f - 12582912.0f;
  const vf power = exp((inside - n) * 0.693147180559945f);  // between 2^-1/2 and 2^1/2, or NaN
  return scale_by_power(power, __builtin_convertvector(n == n ? n : vf{}, vi));
}

// log x = e · log 2 + high + low, for a power 2^e near x.
struct LogParts {
  vf exponent, high, low;
};

inline LogParts log_parts(vf x) {
  const vi tiny = x < 1.17549435e-38f;  // denormals are scaled into the normal range first
  const vf y = tiny ? x * 8388608.0f : x;
  // y = m · 2^e with m in [sqrt(1/2), sqrt(2))
  const vi bits = (vi)y - 0x3f3504f3;
  const vi exponent = (bits >> 23) + (tiny & -23);
  const vf f = (vf)((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const vf e = __builtin_convertvector(exponent, vf);
  vf p = -1.1514610310e-1f + f * 7.0376836292e-2f;
  p = 1.1676998740e-1f + f * p;
  p = -1.2420140846e-1f + f * p;
  p = 1.4249322787e-1f + f * p;
  p = -1.6668057665e-1f + f * p;
  p = 2.0000714765e-1f + f * p;
  p = -2.4999993993e-1f + f * p;
  p = 3.3333331174e-1f + f * p;
  const vf square = f * f;
  return {e, f, f * square * p - 0.5f * square};
}

inline vf log_special(vf x, vf value) {
  const vf finite = x == 0.0f ? broadcast(-kInfinity) : (x < 0.0f ? broadcast(kNan) : value);
  return ((x != x) | (x == kInfinity)) ? x : finite;
}

inline vf log(vf x) {
  const LogParts parts = log_parts(x);
  const vf tail = parts.low + parts.exponent * -2.12194440e-4f;
  return log_special(x, parts.high + tail + parts.exponent * 0.693359375f);
}

inline vf log2(vf x) {
  const LogParts parts = log_parts(x);
  // log2(e) = 1 + 0.44269504: the sum is made from its small parts up.
  const vf tail = (parts.high + parts.low) * 0.442695040888963f + parts.low;
  return log_special(x, tail + parts.high + parts.exponent);
}

inline vf tanh(vf x) {
  const vf a = abs(x);
  const vf z = x * x;
  vf p = 2.06390887954531e-2f + z * -5.70498872745158e-3f;
  p = -5.37397155531256e-2f + z * p;
  p = 1.33314422036180e-1f + z * p;
  p = -3.33332819422474e-1f + z * p;
  const vf size = a < 0.625f ? a + a * z * p : 1.0f - 2.0f / (exp(a + a) + 1.0f);
  return (vf)((vi)size | ((vi)x & INT32_MIN));  // odd, -0.0 too
}

// From the exponential of -|x|, which cannot overflow: right at both ends.
inline vf sigmoid(vf x) {
  vf low;
  const vf e = exp(-abs(x), low);
  const vf sum = 1.0f + e;
  const vf ratio = e / sum;
  const vf left_out = low - ratio * (e - (sum - 1.0f));  // by e and by the sum
  return x < 0.0f ? ratio + left_out * (1.0f - ratio) : 1.0f / sum;
}

// log(1 + e^x), from the exponential that cannot overflow.
inline vf softplus(vf x) {
  vf low;
  const vf e = exp(-abs(x), low);
  const vf sum = 1.0f + e;
  const vf left_out = e - (sum - 1.0f) + low;  // by the sum and by e: all of e where it is small
  return (x != x) ? x : max(x, vf{}) + (log(sum) + left_out / sum);
}

inline vf sin(vf x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::sin(x[lane]);
  return x;
}
inline vf cos(vf x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::cos(x[lane]);
  return x;
}

inline vf sqrt(vf x) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_sqrt_ps(0xffff, (__m512)x);
#elif defined(__AVX2__)
  return (vf)_mm256_sqrt_ps((__m256)x);
#else
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

inline vf floor(vf x) {
  const vi has_fraction = abs(x) < 8388608.0f;  // 2^23: from there on every float is an integer
  const vf whole = __builtin_convertvector(__builtin_convertvector(has_fraction ? x : vf{}, vi), vf);
  const vf floored = whole > x ? whole - 1.0f : whole;
  return (has_fraction & (floored != x)) ? floored : x;  // x itself where it is whole: keeps -0.0
}

inline float exp(float x) { return exp(broadcast(x))[0]; }
inline float exp2(float x) { return exp2(broadcast(x))[0]; }
inline float log2(float x) { return log2(broadcast(x))[0]; }
inline float softplus(float x) { return softplus(broadcast(x))[0]; }
inline float sin(float x) { return std::sin(x); }
inline float cos(float x) { return std::cos(x); }
inline float log(float x) { return log(broadcast(x))[0]; }
inline float tanh(float x) { return tanh(broadcast(x))[0]; }
inline float sigmoid(float x) { return sigmoid(broadcast(x))[0]; }
inline float sqrt(float x) { return __builtin_sqrtf(x); }
inline float floor(float x) { return floor(broadcast(x))[0]; }

// ---- // and %, which floor; a divisor of 0 gives 0 among integers ----

inline int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return static_cast<int64_t>(0 - static_cast<uint64_t>(a));
  const int64_t quotient = a / b;
  return quotient - (quotient * b != a && (a < 0) != (b < 0));
}
inline int64_t floor_mod(int64_t a, int64_t b) {
  if (b == 0 || b == -1) return 0;
  const int64_t rest = a % b;
  return rest + (rest != 0 && (rest < 0) != (b < 0) ? b : 0);
}
inline int32_t floor_div(int32_t a, int32_t b) {
  return static_cast<int32_t>(floor_div(static_cast<int64_t>(a), static_cast<int64_t>(b)));
}
inline int32_t floor_mod(int32_t a, int32_t b) {
  return static_cast<int32_t>(floor_mod(static_cast<int64_t>(a), static_cast<int64_t>(b)));
}

// Through double, whose 53 bits hold the quotient of two int32 exactly enough to truncate rightly.
inline vi floor_div(vi a, vi b) {
  const vi divisor = b == 0 ? broadcast(1) : b;
  const vd exact = __builtin_convertvector(a, vd) / __builtin_convertvector(divisor, vd);
  const vi quotient = __builtin_convertvector(__builtin_convertvector(exact, vl), vi);
  const vi rest = a - quotient * divisor;
  return (quotient + ((rest != 0) & ((rest ^ divisor) < 0))) & (b != 0);
}
inline vi floor_mod(vi a, vi b) { return (a - floor_div(a, b) * b) & (b != 0); }
inline vl floor_div(vl a, vl b) {
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = floor_div(a[lane], b[lane]);
  return a;
}
inline vl floor_mod(vl a, vl b) {
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = floor_mod(a[lane], b[lane]);
  return a;
}

// As Python's: the remainder is exact and has the divisor's sign.
inline float floor_mod(float a, float b) {
  const float rest = std::fmod(a, b);
  if (rest != 0.0f) return (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
  return rest != rest ? rest : __builtin_copysignf(0.0f, b);
}
inline float floor_div(float a, float b) {
  if (b == 0.0f) return a / b;
  const float rest = std::fmod(a, b);
  const float quotient = (a - rest) / b - (rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? 1.0f : 0.0f);
  const float whole = floor(quotient);
  return quotient - whole > 0.5f ? whole + 1.0f : whole;
}
inline float pow(float a, float b) { return std::pow(a, b); }

inline vf floor_mod(vf a, vf b) {
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = floor_mod(a[lane], b[lane]);
  return a;
}
inline vf floor_div(vf a, vf b) {
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = floor_div(a[lane], b[lane]);
  return a;
}
inline vf pow(vf a, vf b) {
  for (int lane = 0; lane < kLanes; ++lane) a[lane] = pow(a[lane], b[lane]);
  return a;
}

}  // namespace
}  // namespace fagen
