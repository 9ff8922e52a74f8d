// What a bulk copy does to the bytes that it goes to: overwrites them, or takes them together with its own. Source: PTX
// ISA, cp.reduce.async.bulk.
#include "machine.h"

namespace fagen::emulate {
namespace {

template <typename T>
T reduced(Reduce what, T old, T a) {
  switch (what) {
    case Reduce::kAdd: return static_cast<T>(static_cast<Unsigned<T>>(old) + static_cast<Unsigned<T>>(a));
    case Reduce::kMin: return a < old ? a : old;
    case Reduce::kMax: return a > old ? a : old;
    case Reduce::kInc: return old >= a ? T(0) : static_cast<T>(old + 1);
    case Reduce::kDec: return old == 0 || old > a ? a : static_cast<T>(old - 1);
    case Reduce::kAnd: return static_cast<T>(old & a);
    case Reduce::kOr: return static_cast<T>(old | a);
    case Reduce::kXor: return static_cast<T>(old ^ a);
    default: return a;
  }
}

template <typename T, typename F>
void each(u8* to, const u8* from, u32 bytes, F f) {
  for (u32 n = 0; n + sizeof(T) <= bytes; n += sizeof(T)) {
    T old, a;
    std::memcpy(&old, to + n, sizeof(T));
    std::memcpy(&a, from + n, sizeof(T));
    const T now = f(old, a);
    std::memcpy(to + n, &now, sizeof(T));
  }
}

template <typename H>
u16 half_reduced(Reduce what, u16 old, u16 a) {
  switch (what) {
    case Reduce::kMin: return h_min<H, false>(old, a);
    case Reduce::kMax: return h_max<H, false>(old, a);
    default: return h_add<H, false, false>(old, a);
  }
}

}  // namespace

void put(const Bulk& bulk, u8* to, const u8* from, u32 bytes) {
  const Reduce what = bulk.reduce;
  if (what == Reduce::kNone) {
    std::memcpy(to, from, bytes);
    return;
  }
  switch (bulk.type) {
    case Type::kF32: each<float>(to, from, bytes, [](float x, float y) { return x + y; }); break;
    case Type::kF64: each<double>(to, from, bytes, [](double x, double y) { return x + y; }); break;
    case Type::kF16: each<u16>(to, from, bytes, [=](u16 x, u16 y) { return half_reduced<Half>(what, x, y); }); break;
    case Type::kBf16: each<u16>(to, from, bytes, [=](u16 x, u16 y) { return half_reduced<Bfloat>(what, x, y); }); break;
    case Type::kS32: each<s32>(to, from, bytes, [=](s32 x, s32 y) { return reduced(what, x, y); }); break;
    case Type::kS64: each<s64>(to, from, bytes, [=](s64 x, s64 y) { return reduced(what, x, y); }); break;
    case Type::kU64: case Type::kB64:
      each<u64>(to, from, bytes, [=](u64 x, u64 y) { return reduced(what, x, y); });
      break;
    default: each<u32>(to, from, bytes, [=](u32 x, u32 y) { return reduced(what, x, y); }); break;
  }
}

}  // namespace fagen::emulate
