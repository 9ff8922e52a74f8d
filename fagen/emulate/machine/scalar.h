// What floating-point instructions and conversions compute, each from the PTX ISA's description of it. Programs include
// this. Registers are unsigned integers of their width; predicates are bool.
#pragma once
#include <cfenv>

#include "formats.h"
#include "integers.h"

namespace fagen::emulate {

// ---- float32 and float64

// abs and neg, of 16-bit formats too: NaN is one pattern.
template <int kMantissa>
inline u32 signed_as(u32 magnitude, u32 sign) {
  const u32 nan = kMantissa == 23 ? 0x7fffffffu : 0x7fffu;
  const u32 infinity = nan >> kMantissa << kMantissa;
  return magnitude > infinity ? nan : magnitude | sign;
}
template <typename F>
inline F canonical(F x) {  // NaN results are one pattern
  if constexpr (sizeof(F) == 4) return x != x ? as<float>(0x7fffffffu) : x;
  return x;
}
template <typename F>
inline F saturated(F x) { return x != x ? F(0) : x < F(0) ? F(0) : x > F(1) ? F(1) : x + F(0); }
template <bool kFlush, typename F>
inline F in(F x) {
  if constexpr (kFlush && sizeof(F) == 4) return flushed(x);
  return x;
}
template <bool kFlush, bool kSat, typename F>
inline F out(F x) {
  x = in<kFlush>(x);
  if constexpr (kSat) return saturated(x);
  return canonical(x);
}

// Directed rounding by the processor's own modes; `op` must not be inlined past the change of mode.
template <typename F, typename Op>
__attribute__((noinline)) F rounded_as(Round mode, Op op) {
  const int before = std::fegetround();
  std::fesetround(mode == Round::kZero ? FE_TOWARDZERO : mode == Round::kDown ? FE_DOWNWARD : FE_UPWARD);
  volatile F result = op();
  std::fesetround(before);
  return result;
}
template <Round kMode, typename F>
inline F f_add(F a, F b) {
  if constexpr (kMode == Round::kNearestEven) return a + b;
  volatile F x = a, y = b;
  return rounded_as<F>(kMode, [&] { return x + y; });
}
template <Round kMode, typename F>
inline F f_mul(F a, F b) {
  if constexpr (kMode == Round::kNearestEven) return a * b;
  volatile F x = a, y = b;
  return rounded_as<F>(kMode, [&] { return x * y; });
}
template <Round kMode, typename F>
inline F f_fma(F a, F b, F c) {
  if constexpr (kMode == Round::kNearestEven) return std::fma(a, b, c);
  volatile F x = a, y = b, z = c;
  return rounded_as<F>(kMode, [&] { return std::fma(F(x), F(y), F(z)); });
}
template <Round kMode, typename F>
inline F f_div(F a, F b) {
  if constexpr (kMode == Round::kNearestEven) return a / b;
  volatile F x = a, y = b;
  return rounded_as<F>(kMode, [&] { return x / y; });
}
template <Round kMode, typename F>
inline F f_sqrt(F a) {
  if constexpr (kMode == Round::kNearestEven) return std::sqrt(a);
  volatile F x = a;
  return rounded_as<F>(kMode, [&] { return std::sqrt(F(x)); });
}
template <bool kNan, typename F>
inline F f_min(F a, F b) {
  if (kNan && (a != a || b != b)) return canonical(std::nan("") + F(0) * F(0) == 0 ? F(0) : F(std::nan("")));
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? a : b;  // -0 is less than +0
  return a < b ? a : b;
}
template <bool kNan, typename F>
inline F f_max(F a, F b) {
  if (kNan && (a != a || b != b)) return canonical(F(std::nan("")));
  if (a != a) return canonical(b);
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}
inline float xorsign(float x, float a, float b) {
  return x != x ? canonical(x) : std::copysign(x, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f);
}
// The approximations of the special-function unit are given the exact value, rounded: within what the ISA allows.
inline float approx_ex2(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }
inline float approx_lg2(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
inline float approx_sin(float x) { return static_cast<float>(std::sin(static_cast<double>(x))); }
inline float approx_cos(float x) { return static_cast<float>(std::cos(static_cast<double>(x))); }
inline float approx_tanh(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }
inline float approx_rcp(float x) { return static_cast<float>(1.0 / static_cast<double>(x)); }
inline float approx_sqrt(float x) { return static_cast<float>(std::sqrt(static_cast<double>(x))); }
inline float approx_rsqrt(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float full_div(float a, float b) { return static_cast<float>(static_cast<double>(a) / static_cast<double>(b)); }
inline float approx_div(float a, float b) {
  // 2^126 < |b| < 2^128: the quotient is zero, or NaN of an infinite dividend.
  const float size = std::fabs(b);
  if (size > 8.5070592e37f && std::isfinite(b) && a == a) {
    return std::isinf(a) ? as<float>(0x7fffffffu) : std::copysign(0.0f, a) * (b < 0 ? -1.0f : 1.0f);
  }
  return full_div(a, b);
}
// Of float64, by the upper 32 bits alone.
inline double upper32(double x) { return f64(bits(x) >> 32 << 32); }
inline double flushed(double x) { return std::fabs(x) < 2.2250738585072014e-308 ? std::copysign(0.0, x) : x; }
inline double approx_rcp64(double x) { return upper32(flushed(1.0 / flushed(upper32(x)))); }
inline double approx_rsqrt64(double x) { return upper32(flushed(1.0 / std::sqrt(flushed(upper32(x))))); }
enum class Test : u8 { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <typename F>
inline bool testp(F x, Test test) {
  switch (test) {
    case Test::kFinite: return std::isfinite(x);
    case Test::kInfinite: return std::isinf(x);
    case Test::kNumber: return x == x;
    case Test::kNotANumber: return x != x;
    case Test::kNormal: return x == F(0) || std::isnormal(x);
    case Test::kSubnormal: return x != F(0) && std::isfinite(x) && !std::isnormal(x);
  }
  return false;
}

// ---- f16, bf16

struct Half {
  static constexpr Format format = kF16;
  static double value(u16 x) { return value16(x); }
};
struct Bfloat {
  static constexpr Format format = kBf16;
  static double value(u16 x) { return value_bf16(x); }
};
template <typename H>
inline u16 flush16(u16 x) {
  const u16 exponent = static_cast<u16>(((1u << H::format.exponent_bits) - 1) << H::format.mantissa_bits);
  return x & exponent ? x : static_cast<u16>(x & 0x8000u);
}
template <typename H, bool kFlush, bool kSat, bool kRelu>
inline u16 h_out(double x, int beyond) {
  u16 out = static_cast<u16>(encode(x, H::format, Round::kNearestEven, false, beyond));
  const bool nan = x != x;
  if (kFlush) {
    // What would be below the normal numbers if exponents had no end, and not what this format rounds up to them.
    constexpr double smallest = H::format.exponent_bits == 5 ? 0x1p-14 : 0x1p-126;
    constexpr double limit = smallest - smallest * (H::format.mantissa_bits == 10 ? 0x1p-12 : 0x1p-9);
    const double magnitude = std::fabs(x);
    if (magnitude < limit || (magnitude == limit && beyond < 0)) out &= 0x8000u;
  }
  if (kSat && (nan || out & 0x8000u)) {
    out = 0;
  } else if (kSat && H::value(out) > 1.0) {
    out = static_cast<u16>(encode(1.0, H::format, Round::kNearestEven));
  }
  if (kRelu && !nan && out & 0x8000u) out = 0;
  return out;
}
template <typename H, bool kFlush, bool kSat, bool kRelu>
inline u16 h_fma(u16 a, u16 b, u16 c) {
  if (kFlush) { a = flush16<H>(a); b = flush16<H>(b); c = flush16<H>(c); }
  int beyond;
  const double x = fused(H::value(a), H::value(b), H::value(c), beyond);
  return h_out<H, kFlush, kSat, kRelu>(x, beyond);
}
template <typename H, bool kFlush, bool kSat>
inline u16 h_add(u16 a, u16 b) {
  if (kFlush) { a = flush16<H>(a); b = flush16<H>(b); }
  int beyond;
  const double x = fused(H::value(a), 1.0, H::value(b), beyond);
  return h_out<H, kFlush, kSat, false>(x, beyond);
}
template <typename H, bool kFlush, bool kSat>
inline u16 h_mul(u16 a, u16 b) {
  if (kFlush) { a = flush16<H>(a); b = flush16<H>(b); }
  return h_out<H, kFlush, kSat, false>(H::value(a) * H::value(b), 0);
}
template <typename H, bool kNan>
inline u16 h_min(u16 a, u16 b) {
  const double x = H::value(a), y = H::value(b);
  if (x != x || y != y) return kNan || (x != x && y != y) ? 0x7fff : x != x ? b : a;
  if (x == y) return a & 0x8000u ? a : b;
  return x < y ? a : b;
}
template <typename H, bool kNan>
inline u16 h_max(u16 a, u16 b) {
  const double x = H::value(a), y = H::value(b);
  if (x != x || y != y) return kNan || (x != x && y != y) ? 0x7fff : x != x ? b : a;
  if (x == y) return a & 0x8000u ? b : a;
  return x > y ? a : b;
}
template <typename H>
inline u16 h_unary(u16 a, double (*op)(double)) {
  return static_cast<u16>(encode(op(H::value(a)), H::format, Round::kNearestEven));
}
template <typename Op>
inline u32 each_half(u32 a, Op op) {
  return static_cast<u32>(op(static_cast<u16>(a))) | static_cast<u32>(op(static_cast<u16>(a >> 16))) << 16;
}
template <typename Op>
inline u32 each_half(u32 a, u32 b, Op op) {
  return static_cast<u32>(op(static_cast<u16>(a), static_cast<u16>(b))) |
         static_cast<u32>(op(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16))) << 16;
}
template <typename Op>
inline u32 each_half(u32 a, u32 b, u32 c, Op op) {
  return static_cast<u32>(op(static_cast<u16>(a), static_cast<u16>(b), static_cast<u16>(c))) |
         static_cast<u32>(op(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16), static_cast<u16>(c >> 16))) << 16;
}

// ---- conversions

// A float to an integer: rounded by `mode`, clamped to T's range; NaN gives 0 (32 bits and less, and f64), or the
// largest magnitude bit for 64-bit results of a float32 or f16.
template <typename T>
inline T to_integer(double x, Round mode, bool from_double) {
  constexpr Unsigned<T> top = static_cast<Unsigned<T>>(Unsigned<T>{1} << (width_of<T> - 1));
  if (x != x) return sizeof(T) == 8 || from_double ? static_cast<T>(top) : T{0};
  double whole;
  switch (mode) {
    case Round::kNearestEven: whole = std::nearbyint(x); break;
    case Round::kZero: whole = std::trunc(x); break;
    case Round::kDown: whole = std::floor(x); break;
    default: whole = std::ceil(x); break;
  }
  const double low = is_signed_int<T> ? -std::ldexp(1.0, width_of<T> - 1) : 0.0;
  const double high = std::ldexp(1.0, is_signed_int<T> ? width_of<T> - 1 : width_of<T>);
  if (whole < low) return is_signed_int<T> ? static_cast<T>(top) : T{0};
  if (whole >= high) return static_cast<T>(is_signed_int<T> ? ~top : ~Unsigned<T>{0});
  return static_cast<T>(whole);
}
template <typename F, typename T>
inline F from_integer(T x, Round mode) {
  if (mode == Round::kNearestEven) return static_cast<F>(x);
  volatile T held = x;
  return rounded_as<F>(mode, [&] { return static_cast<F>(held); });
}
// A 64-bit integer as a double whose last bit tells whether bits were lost: it rounds to 16 bits as the integer does.
template <typename T>
inline double sticky_double(T x) {
  const bool negative = is_signed_int<T> && x < 0;
  u64 magnitude = negative ? ~static_cast<u64>(x) + 1 : static_cast<u64>(x);
  if (magnitude >> 53 != 0) magnitude = (magnitude & ~u64{0x7ff}) | static_cast<u64>((magnitude & 0x7ff) != 0) << 11;
  const double value = static_cast<double>(magnitude);
  return negative ? -value : value;
}
// NaN of a float64 keeps its sign and the upper bits of its payload.
inline u32 narrowed_nan(double x, Format f) {
  const u64 pattern = bits(x);
  const u32 exponent = ((1u << f.exponent_bits) - 1) << f.mantissa_bits, quiet = 1u << (f.mantissa_bits - 1);
  const u32 payload = static_cast<u32>(pattern << 12 >> (64 - f.mantissa_bits));
  return static_cast<u32>(pattern >> 63) << (f.width() - 1) | exponent | quiet | payload;
}
// .rna of tf32, by integers, as the hardware does it: NaN loses its lower bits, and may become infinity.
inline u32 tf32_away(u32 x, bool saturate) {
  const u32 rounded = ((x & 0x7fffffffu) > 0x7f800000u ? x : x + 0x1000u) & 0xffffe000u;
  return saturate && (rounded & 0x7fffffffu) >= 0x7f800000u ? rounded - 0x2000u : rounded;
}
// cvt.pack: two integers, clamped, as the lowest `width` bits each of what is shifted up.
inline u32 pack_pair(s32 a, s32 b, u32 c, u32 width, bool is_signed) {
  const s64 low = is_signed ? -(s64{1} << (width - 1)) : 0, high = (s64{1} << (is_signed ? width - 1 : width)) - 1;
  const auto clamp = [&](s64 x) { return static_cast<u32>(x < low ? low : x > high ? high : x) & ((1u << width) - 1); };
  return (width == 16 ? 0 : c << (2 * width)) | clamp(a) << width | clamp(b);
}
inline double rounded_to_integer(double x, Round mode) {
  switch (mode) {
    case Round::kNearestEven: return std::nearbyint(x);
    case Round::kZero: return std::trunc(x);
    case Round::kDown: return std::floor(x);
    default: return std::ceil(x);
  }
}
inline float narrowed(double x, Round mode) {
  if (mode == Round::kNearestEven) return static_cast<float>(x);
  volatile double held = x;
  return rounded_as<float>(mode, [&] { return static_cast<float>(held); });
}
template <typename To, typename From>
inline To clamped(From x) {  // an integer, .sat
  if constexpr (is_signed_int<From> && !is_signed_int<To>) {
    if (x < 0) return 0;
  }
  const __int128 low = is_signed_int<To> ? -(static_cast<__int128>(1) << (width_of<To> - 1)) : 0;
  const __int128 high = (static_cast<__int128>(1) << (width_of<To> - (is_signed_int<To> ? 1 : 0))) - 1;
  const __int128 value = static_cast<__int128>(x);
  return static_cast<To>(value < low ? low : value > high ? high : value);
}
// A narrow float of `f`, from a float32 or half's value. NaN stays a NaN also with relu; relu makes negatives +0.
inline u32 narrow(double x, Format f, Round mode, bool saturate, bool relu) {
  if (relu && x == x && std::signbit(x)) x = 0.0;
  return encode(x, f, mode, saturate);
}

}  // namespace fagen::emulate
