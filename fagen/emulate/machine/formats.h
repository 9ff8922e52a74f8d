// Narrow floating-point formats and rounding, bit for bit as the PTX ISA has them. Conversions pass exact doubles.
#pragma once
#include <cmath>
#include <cstring>

#include "thread.h"

namespace fagen::emulate {

template <typename To, typename From>
inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

inline float f32(u32 bits) { return as<float>(bits); }
inline double f64(u64 bits) { return as<double>(bits); }
inline u32 bits(float x) { return as<u32>(x); }
inline u64 bits(double x) { return as<u64>(x); }

enum class Round : u8 { kNearestEven, kZero, kDown, kUp, kNearestAway };

// A format of 1 sign bit, `exponent_bits` and `mantissa_bits`. `finite` ones have no infinity and one NaN pattern, all
// ones (e4m3), or none at all (`no_nan`: e2m1, e2m3, e3m2).
struct Format {
  int exponent_bits, mantissa_bits;
  bool finite = false, no_nan = false;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int width() const { return 1 + exponent_bits + mantissa_bits; }
};
constexpr Format kF16{5, 10}, kBf16{8, 7}, kTf32{8, 10}, kE4m3{4, 3, true}, kE5m2{5, 2}, kSingle{8, 23},
    kE2m1{2, 1, true, true}, kE2m3{2, 3, true, true}, kE3m2{3, 2, true, true};

constexpr u32 largest_of(Format f) {
  const u32 exponent = (1u << f.exponent_bits) - 1, mantissa = (1u << f.mantissa_bits) - 1;
  if (f.no_nan) return exponent << f.mantissa_bits | mantissa;
  if (f.finite) return exponent << f.mantissa_bits | (mantissa - 1);
  return (exponent - 1) << f.mantissa_bits | mantissa;
}

constexpr u32 nan_of(Format f) {
  if (f.finite) return (1u << (f.width() - 1)) - 1;
  if (f.exponent_bits == 8 && f.mantissa_bits == 23) return 0x7fffffffu;  // the canonical NaN of float32
  return (1u << (f.width() - 1)) - 1;  // f16 0x7fff, bf16 0x7fff, e5m2 0x7f, tf32 0x3ffff
}

// The value of a pattern, exact.
inline double decode(u32 pattern, Format f) {
  const u32 mantissa = pattern & ((1u << f.mantissa_bits) - 1);
  const int exponent = static_cast<int>(pattern >> f.mantissa_bits & ((1u << f.exponent_bits) - 1));
  const bool negative = pattern >> (f.width() - 1) & 1;
  double value;
  if (!f.no_nan && exponent == (1 << f.exponent_bits) - 1 && !f.finite) {
    value = mantissa ? std::nan("") : HUGE_VAL;
  } else if (f.finite && !f.no_nan && (pattern & ((1u << (f.width() - 1)) - 1)) == nan_of(f)) {
    value = std::nan("");
  } else if (exponent == 0) {
    value = std::ldexp(static_cast<double>(mantissa), 1 - f.bias() - f.mantissa_bits);
  } else {
    value = std::ldexp(static_cast<double>(mantissa | 1u << f.mantissa_bits), exponent - f.bias() - f.mantissa_bits);
  }
  return negative ? -value : value;
}

// The pattern nearest to `value`, which may stand for a number a little off it: `beyond` is -1, 0 or 1 as the exact
// number is nearer to zero than |value|, equal, or farther (sticky bits that no double can hold).
// `saturate`: numbers beyond the largest, infinities too, become the largest; formats without infinity always do so
// unless `to_nan` (as e4m3 without .satfinite never is: the ISA has only .satfinite).
inline u32 encode(double value, Format f, Round mode, bool saturate = false, int beyond = 0) {
  if (std::isnan(value)) return nan_of(f);
  const bool negative = std::signbit(value);
  const u32 sign = static_cast<u32>(negative) << (f.width() - 1);
  const double magnitude = std::fabs(value);
  const u32 largest = largest_of(f);
  const u32 infinity = f.finite ? largest : ((1u << f.exponent_bits) - 1) << f.mantissa_bits;
  if (std::isinf(value)) return sign | (saturate ? largest : infinity);
  if (magnitude == 0.0 && beyond == 0) return sign;
  int exponent = magnitude == 0.0 ? 1 - f.bias() : std::ilogb(magnitude);
  if (exponent < 1 - f.bias()) exponent = 1 - f.bias();
  // Units in the last place of the result; exact, since the format is narrower than a double.
  const double units = std::ldexp(magnitude, f.mantissa_bits - exponent);
  double whole = std::floor(units);
  const double rest = units - whole;
  // Where the exact number lies between `whole` and the next.
  int side;  // -1: below half, 0: half, 1: above half; and is it exact?
  const bool exact = rest == 0.0 && beyond == 0;
  if (rest == 0.0 && beyond < 0) {
    whole -= 1.0;
    side = 1;
  } else {
    side = rest < 0.5 ? -1 : rest > 0.5 ? 1 : beyond;
  }
  bool up = false;
  if (!exact) {
    switch (mode) {
      case Round::kNearestEven: up = side > 0 || (side == 0 && std::fmod(whole, 2.0) != 0.0); break;
      case Round::kNearestAway: up = side >= 0; break;
      case Round::kZero: up = false; break;
      case Round::kDown: up = negative; break;
      case Round::kUp: up = !negative; break;
    }
  }
  if (up) whole += 1.0;
  const double limit = std::ldexp(2.0, f.mantissa_bits);
  u32 pattern;
  if (whole >= limit) {
    whole *= 0.5;
    ++exponent;
  }
  if (whole < std::ldexp(1.0, f.mantissa_bits)) {  // subnormal
    pattern = static_cast<u32>(whole);
  } else {
    const int biased = exponent + f.bias();
    if (biased >= (1 << f.exponent_bits)) {
      pattern = infinity + (f.finite ? 1 : 0);
    } else {
      pattern = static_cast<u32>(biased) << f.mantissa_bits | (static_cast<u32>(whole) & ((1u << f.mantissa_bits) - 1));
    }
  }
  if (pattern > largest) {
    if (saturate || f.finite) return sign | largest;
    const bool stays = mode == Round::kZero || (mode == Round::kDown && !negative) || (mode == Round::kUp && negative);
    pattern = stays ? largest : infinity;
  }
  return sign | pattern;
}

// x * y + z as a double and where the exact sum lies beyond it: exact whenever x * y fits a double (float32 factors
// and narrower do).
inline double fused(double x, double y, double z, int& beyond) {
  const double product = x * y, sum = product + z;
  beyond = 0;
  if (!std::isfinite(sum)) return sum;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (z - back);
  if (error != 0.0) beyond = (error > 0.0) == (sum > 0.0 || (sum == 0.0 && error > 0.0)) ? 1 : -1;
  return sum;
}

inline double value16(u16 pattern) { return decode(pattern, kF16); }
inline double value_bf16(u16 pattern) { return static_cast<double>(f32(static_cast<u32>(pattern) << 16)); }
inline float widened_f16(u16 x) {
  const u32 magnitude = x & 0x7fffu, sign = static_cast<u32>(x & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return f32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  return f32(bits(f32(magnitude << 13) * 5.192296858534828e33f) | sign);  // 2^112
}
inline float flushed(float x) {
  return std::fabs(x) < 1.17549435e-38f ? std::copysign(0.0f, x) : x;
}

}  // namespace fagen::emulate
