// Elements of matrices, as mma and wgmma have them.
#pragma once
#include <array>

#include "formats.h"

namespace fagen::emulate {

enum Element : s32 { kEF16, kEBf16, kETf32, kEF32, kEF64, kES8, kEU8, kES4, kEU4, kEB1, kEE4m3, kEE5m2, kES32 };

inline s32 bits_of(s32 element) {
  switch (element) {
    case kEF16: case kEBf16: return 16;
    case kES8: case kEU8: case kEE4m3: case kEE5m2: return 8;
    case kES4: case kEU4: return 4;
    case kEF64: return 64;
    default: return 32;
  }
}

inline double floating(u32 pattern, s32 element) {
  switch (element) {
    case kEF16: return widened_f16(static_cast<u16>(pattern));
    case kEBf16: return f32(pattern << 16);
    case kETf32: return f32(pattern & 0xffffe000u);
    case kEE4m3: return decode(pattern, kE4m3);
    case kEE5m2: return decode(pattern, kE5m2);
    default: return f32(pattern);
  }
}

inline s32 integral(u32 pattern, s32 element) {
  switch (element) {
    case kES8: return static_cast<s8>(pattern);
    case kES4: return static_cast<s32>(pattern << 28) >> 28;
    default: return static_cast<s32>(pattern);
  }
}

// Of e4m3 and e5m2, by a table.
inline float small_float(u32 pattern, s32 element) {
  static const auto tables = [] {
    std::array<std::array<float, 256>, 2> made{};
    for (u32 n = 0; n < 256; ++n) {
      made[0][n] = static_cast<float>(decode(n, kE4m3));
      made[1][n] = static_cast<float>(decode(n, kE5m2));
    }
    return made;
  }();
  return tables[element == kEE5m2][pattern];
}

}  // namespace fagen::emulate
