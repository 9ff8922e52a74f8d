// What integer, logic and bit instructions compute, each from the PTX ISA's description of it. Registers are unsigned
// integers of their width; T is the instruction's type. Arithmetic wraps.
#pragma once
#include <type_traits>

#include "thread.h"

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
inline s32 mad24_hi_sat(s32 a, s32 b, s32 c) {
  return add_sat(static_cast<s32>(low24(a) * low24(b) >> 16), c);
}
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
inline T shl(T a, u32 n) {
  return n >= static_cast<u32>(width_of<T>) ? T{0} : static_cast<T>(static_cast<Unsigned<T>>(a) << n);
}
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

}  // namespace fagen::emulate
