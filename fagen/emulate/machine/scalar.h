// What scalar PTX instructions compute, each from the PTX ISA's description of it. Registers are unsigned integers of
// their width; predicates are bool.
#pragma once
#include <cfenv>
#include <type_traits>

#include "formats.h"

namespace fagen::emulate {

template <typename T>
constexpr int width_of = static_cast<int>(8 * sizeof(T));

template <int kBytes>
struct IntegersOf;
template <>
struct IntegersOf<1> { using U = u8; using S = s8; };
template <>
struct IntegersOf<2> { using U = u16; using S = s16; };
template <>
struct IntegersOf<4> { using U = u32; using S = s32; };
template <>
struct IntegersOf<8> { using U = u64; using S = s64; };
template <>
struct IntegersOf<16> { using U = unsigned __int128; using S = __int128; };
template <typename T>
using Unsigned = typename IntegersOf<sizeof(T)>::U;
template <typename T>
using Signed = typename IntegersOf<sizeof(T)>::S;
template <typename T>
constexpr bool is_signed_int = T(-1) < T(0);

// ---- integers. T is the instruction's type; arithmetic wraps.

template <typename T>
inline T add(T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b)); }
template <typename T>
inline T sub(T a, T b) { return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b)); }
inline s32 add_sat(s32 a, s32 b) {
  const s64 sum = static_cast<s64>(a) + b;
  return sum > 2147483647 ? 2147483647 : sum < -2147483647 - 1 ? -2147483647 - 1 : static_cast<s32>(sum);
}
inline s32 sub_sat(s32 a, s32 b) {
  const s64 sum = static_cast<s64>(a) - b;
  return sum > 2147483647 ? 2147483647 : sum < -2147483647 - 1 ? -2147483647 - 1 : static_cast<s32>(sum);
}
template <typename T>
using Wide = std::conditional_t<is_signed_int<T>, typename IntegersOf<2 * sizeof(T)>::S,
                                typename IntegersOf<2 * sizeof(T)>::U>;
template <typename T>
inline Wide<T> mul_wide(T a, T b) { return static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b); }
template <typename T>
inline T mul_lo(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<Wide<T>>>(a) * static_cast<Unsigned<Wide<T>>>(b));
}
template <typename T>
inline T mul_hi(T a, T b) { return static_cast<T>(mul_wide(a, b) >> width_of<T>); }
template <typename T>
inline s64 low24(T a) {
  const u32 low = static_cast<u32>(a) & 0xffffffu;
  return is_signed_int<T> && low >> 23 ? static_cast<s64>(low) - (1 << 24) : static_cast<s64>(low);
}
template <typename T>
inline T mul24_lo(T a, T b) { return static_cast<T>(low24(a) * low24(b)); }
template <typename T>
inline T mul24_hi(T a, T b) { return static_cast<T>(low24(a) * low24(b) >> 16); }
template <typename T>
inline T sad(T a, T b, T c) { return add<T>(c, a < b ? sub<T>(b, a) : sub<T>(a, b)); }
// Division by zero gives what the hardware does: all ones for a quotient, the dividend for a remainder.
template <typename T>
inline T div(T a, T b) {
  if (b == 0) return static_cast<T>(-1);
  if (is_signed_int<T> && b == static_cast<T>(-1)) return sub<T>(0, a);
  return static_cast<T>(a / b);
}
template <typename T>
inline T rem(T a, T b) {
  if (b == 0) return a;
  if (is_signed_int<T> && b == static_cast<T>(-1)) return 0;
  return static_cast<T>(a % b);
}
template <typename T>
inline T absolute(T a) { return a < 0 ? sub<T>(0, a) : a; }
template <typename T>
inline T smaller(T a, T b) { return a < b ? a : b; }
template <typename T>
inline T larger(T a, T b) { return a > b ? a : b; }
inline u32 popc(u64 a) { return static_cast<u32>(__builtin_popcountll(a)); }
inline u32 clz32(u32 a) { return a ? static_cast<u32>(__builtin_clz(a)) : 32; }
inline u32 clz64(u64 a) { return a ? static_cast<u32>(__builtin_clzll(a)) : 64; }
template <typename T>
inline u32 bfind(T a, bool shift) {
  Unsigned<T> x = static_cast<Unsigned<T>>(a);
  if (is_signed_int<T> && a < 0) x = static_cast<Unsigned<T>>(~x);
  if (x == 0) return ~0u;
  const u32 bit = 63 - clz64(static_cast<u64>(x));
  return shift ? static_cast<u32>(width_of<T> - 1) - bit : bit;
}
inline u32 fns(u32 mask, u32 base, s32 offset) {
  if (offset == 0) return base < 32 && mask >> base & 1 ? base : ~0u;
  u32 found = 0;
  const u32 wanted = static_cast<u32>(offset < 0 ? -offset : offset);
  for (s32 bit = static_cast<s32>(base); bit >= 0 && bit < 32; bit += offset > 0 ? 1 : -1) {
    if (mask >> bit & 1 && ++found == wanted) return static_cast<u32>(bit);
  }
  return ~0u;
}
template <typename T>
inline T brev(T a) {
  T out = 0;
  for (int i = 0; i < width_of<T>; ++i) out = static_cast<T>(out << 1 | (a >> i & 1));
  return out;
}
template <typename T>
inline T bfe(T a, u32 position, u32 length) {
  const u32 pos = position & 0xff, len = length & 0xff, top = static_cast<u32>(width_of<T> - 1);
  const bool sign = is_signed_int<T> && len != 0 && (a >> (pos + len - 1 < top ? pos + len - 1 : top) & 1);
  Unsigned<T> out = sign ? static_cast<Unsigned<T>>(~Unsigned<T>{0}) : Unsigned<T>{0};
  for (u32 i = 0; i < len && i <= top && pos + i <= top; ++i) {
    const Unsigned<T> bit = static_cast<Unsigned<T>>(a) >> (pos + i) & 1;
    out = static_cast<Unsigned<T>>((out & ~(Unsigned<T>{1} << i)) | bit << i);
  }
  return static_cast<T>(out);
}
template <typename T>
inline T bfi(T a, T b, u32 position, u32 length) {
  const u32 pos = position & 0xff, len = length & 0xff;
  for (u32 i = 0; i < len && pos + i < static_cast<u32>(width_of<T>); ++i) {
    b = static_cast<T>((b & ~(T{1} << (pos + i))) | (a >> i & 1) << (pos + i));
  }
  return b;
}
inline u32 bmsk(u32 a, u32 b, bool clamp) {
  if (clamp) {
    a = a > 32 ? 32 : a;
    b = b > 32 ? 32 : b;
  } else {
    a &= 31;
    b &= 31;
  }
  const u64 ones = (u64{1} << b) - 1;
  return static_cast<u32>(ones << a);
}
template <typename T>
inline T szext(T a, u32 n, bool clamp) {
  const u32 length = clamp ? (n > 32 ? 32 : n) : n & 31;
  if (length == 0) return 0;
  if (length >= 32) return a;
  const u32 mask = (1u << length) - 1, low = static_cast<u32>(a) & mask;
  return static_cast<T>(is_signed_int<T> && low >> (length - 1) ? low | ~mask : low);
}
template <typename T>
inline T shl(T a, u32 n) { return n >= static_cast<u32>(width_of<T>) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n); }
template <typename T>
inline T shr(T a, u32 n) {
  const u32 top = static_cast<u32>(width_of<T> - 1);
  if (n > top) return is_signed_int<T> ? static_cast<T>(a >> top) : T{0};
  return static_cast<T>(a >> n);
}
inline u32 shf_l(u32 a, u32 b, u32 c, bool wrap) {
  const u32 n = wrap ? c & 31 : c > 32 ? 32 : c;
  return static_cast<u32>((static_cast<u64>(b) << 32 | a) << n >> 32);
}
inline u32 shf_r(u32 a, u32 b, u32 c, bool wrap) {
  const u32 n = wrap ? c & 31 : c > 32 ? 32 : c;
  return static_cast<u32>((static_cast<u64>(b) << 32 | a) >> n);
}
template <typename T>
inline T lop3(T a, T b, T c, u32 table) {
  T out = 0;
  if (table & 0x01) out |= static_cast<T>(~a & ~b & ~c);
  if (table & 0x02) out |= static_cast<T>(~a & ~b & c);
  if (table & 0x04) out |= static_cast<T>(~a & b & ~c);
  if (table & 0x08) out |= static_cast<T>(~a & b & c);
  if (table & 0x10) out |= static_cast<T>(a & ~b & ~c);
  if (table & 0x20) out |= static_cast<T>(a & ~b & c);
  if (table & 0x40) out |= static_cast<T>(a & b & ~c);
  if (table & 0x80) out |= static_cast<T>(a & b & c);
  return out;
}
enum class Permute : u8 { kIndex, kF4e, kB4e, kRc8, kEcl, kEcr, kRc16 };
inline u32 prmt(u32 a, u32 b, u32 c, Permute mode) {
  const u64 bytes = static_cast<u64>(b) << 32 | a;
  u32 selectors[4];
  const u32 n = c & 3;
  for (u32 i = 0; i < 4; ++i) {
    switch (mode) {
      case Permute::kIndex: selectors[i] = c >> (4 * i) & 0xf; break;
      case Permute::kF4e: selectors[i] = n + i; break;
      case Permute::kB4e: selectors[i] = (n + 8 - i) & 7; break;
      case Permute::kRc8: selectors[i] = n; break;
      case Permute::kEcl: selectors[i] = i < n ? n : i; break;
      case Permute::kEcr: selectors[i] = i > n ? n : i; break;
      case Permute::kRc16: selectors[i] = (n & 1) * 2 + (i & 1); break;
    }
  }
  u32 out = 0;
  for (u32 i = 0; i < 4; ++i) {
    const u32 byte = static_cast<u32>(bytes >> (8 * (selectors[i] & 7)) & 0xff);
    const u32 taken = mode == Permute::kIndex && selectors[i] & 8 ? (byte & 0x80 ? 0xffu : 0u) : byte;
    out |= taken << (8 * i);
  }
  return out;
}
template <bool kSignedA, bool kSignedB>
inline u32 dp4a(u32 a, u32 b, u32 c) {
  for (int i = 0; i < 4; ++i) {
    const s32 x = kSignedA ? static_cast<s8>(a >> (8 * i)) : static_cast<s32>(static_cast<u8>(a >> (8 * i)));
    const s32 y = kSignedB ? static_cast<s8>(b >> (8 * i)) : static_cast<s32>(static_cast<u8>(b >> (8 * i)));
    c += static_cast<u32>(x * y);
  }
  return c;
}
template <bool kSignedA, bool kSignedB>
inline u32 dp2a(u32 a, u32 b, u32 c, bool high) {
  for (int i = 0; i < 2; ++i) {
    const s32 x = kSignedA ? static_cast<s16>(a >> (16 * i)) : static_cast<s32>(static_cast<u16>(a >> (16 * i)));
    const u32 shift = 8 * i + (high ? 16 : 0);
    const s32 y = kSignedB ? static_cast<s8>(b >> shift) : static_cast<s32>(static_cast<u8>(b >> shift));
    c += static_cast<u32>(x * y);
  }
  return c;
}
// With carry: `carry` in and out. A subtraction's carry is its borrow.
template <typename T>
inline T add_carry(T a, T b, bool in, bool& out) {
  const unsigned __int128 sum = static_cast<unsigned __int128>(a) + b + in;
  out = static_cast<bool>(sum >> width_of<T> & 1);
  return static_cast<T>(sum);
}
template <typename T>
inline T sub_borrow(T a, T b, bool in, bool& out) {
  const unsigned __int128 difference = static_cast<unsigned __int128>(a) - b - in;
  out = static_cast<bool>(difference >> width_of<T> & 1);
  return static_cast<T>(difference);
}

// ---- float32 and float64

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
// The approximations of the special-function unit are given the exact value, rounded: within what the ISA allows.
inline float approx_ex2(float x) { return static_cast<float>(std::exp2(static_cast<double>(x))); }
inline float approx_lg2(float x) { return static_cast<float>(std::log2(static_cast<double>(x))); }
inline float approx_sin(float x) { return static_cast<float>(std::sin(static_cast<double>(x))); }
inline float approx_cos(float x) { return static_cast<float>(std::cos(static_cast<double>(x))); }
inline float approx_tanh(float x) { return static_cast<float>(std::tanh(static_cast<double>(x))); }
inline float approx_rcp(float x) { return static_cast<float>(1.0 / static_cast<double>(x)); }
inline float approx_sqrt(float x) { return static_cast<float>(std::sqrt(static_cast<double>(x))); }
inline float approx_rsqrt(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float approx_div(float a, float b) {
  // 2^126 < |b| < 2^128: the quotient is zero, or NaN of an infinite dividend.
  const float size = std::fabs(b);
  if (size > 8.5070592e37f && std::isfinite(b)) return std::isinf(a) ? as<float>(0x7fffffffu) : std::copysign(0.0f, a) * (b < 0 ? -1.0f : 1.0f);
  return static_cast<float>(static_cast<double>(a) / static_cast<double>(b));
}
enum class Test : u8 { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };
template <typename F>
inline bool testp(F x, Test test) {
  switch (test) {
    case Test::kFinite: return std::isfinite(x);
    case Test::kInfinite: return std::isinf(x);
    case Test::kNumber: return x == x;
    case Test::kNotANumber: return x != x;
    case Test::kNormal: return std::isnormal(x);
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
  if (kFlush) out = flush16<H>(out);
  if (kSat) out = nan || out & 0x8000u ? 0 : H::value(out) > 1.0 ? static_cast<u16>(encode(1.0, H::format, Round::kNearestEven)) : out;
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
  if (x != x) return sizeof(T) == 8 ? static_cast<T>(u64{1} << 63) : from_double ? static_cast<T>(Unsigned<T>{1} << (width_of<T> - 1)) : T{0};
  double whole;
  switch (mode) {
    case Round::kNearestEven: whole = std::nearbyint(x); break;
    case Round::kZero: whole = std::trunc(x); break;
    case Round::kDown: whole = std::floor(x); break;
    default: whole = std::ceil(x); break;
  }
  const double low = is_signed_int<T> ? -std::ldexp(1.0, width_of<T> - 1) : 0.0;
  const double high = std::ldexp(1.0, is_signed_int<T> ? width_of<T> - 1 : width_of<T>);
  if (whole < low) return is_signed_int<T> ? static_cast<T>(Unsigned<T>{1} << (width_of<T> - 1)) : T{0};
  if (whole >= high) return static_cast<T>(is_signed_int<T> ? static_cast<Unsigned<T>>(~(Unsigned<T>{1} << (width_of<T> - 1))) : static_cast<Unsigned<T>>(~Unsigned<T>{0}));
  return static_cast<T>(whole);
}
template <typename F, typename T>
inline F from_integer(T x, Round mode) {
  if (mode == Round::kNearestEven) return static_cast<F>(x);
  volatile T held = x;
  return rounded_as<F>(mode, [&] { return static_cast<F>(held); });
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
