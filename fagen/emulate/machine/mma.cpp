// mma.sync: D = A * B + C on a warp's fragments. Source: PTX ISA, Matrix Fragments for mma.m8n8k4 and on. All shapes
// but Volta's follow one rule. With g = lane / 4, t = lane % 4 and P elements a register, register r of A holds row
// g + 8 (r % 2) (g where m is 8) and columns 4 P (r / 2) + P t and on, register r of B rows 4 P r + P t and on of
// column g, and D and C row g + 8 (i / 2) and columns 2 t + i % 2.
#include "elements.h"
#include "machine.h"

#define FAGEN_COLLECTIVE extern "C" __attribute__((visibility("default"))) void

namespace fagen::emulate {
namespace {

struct Shape {
  s32 m, n, k;
};

constexpr s32 kMostRows = 16, kMostDepth = 64;

// Element (row, column) of A or (column of B, row): K runs along the second index in both.
template <typename T, typename Read>
void gather(Warp& warp, s32 first, s32 registers, s32 element, bool rows16, s32 depth, T* to, Read read) {
  const s32 width = bits_of(element), count = 32 / width;
  const u32 mask = width == 32 ? ~0u : (1u << width) - 1;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    for (s32 r = 0; r < registers; ++r) {
      const u32 word = operand<u32>(warp, lane, first + r);
      const s32 row = rows16 ? g + 8 * (r % 2) : g, block = rows16 ? r / 2 : r;
      for (s32 p = 0; p < count; ++p) {
        to[row * depth + 4 * count * block + count * t + p] = read(word >> (width * p) & mask, element);
      }
    }
  }
}

void multiply_f64(Warp& warp, Shape s) {
  const s32 rows = s.m / 8, d_count = 2 * rows, a_count = rows * s.k / 4, b_count = s.k / 4;
  double a[kMostRows * 16], b[8 * 16], c[kMostRows * 8];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    for (s32 r = 0; r < a_count; ++r) {
      const s32 row = rows == 2 ? g + 8 * (r % 2) : g, column = 4 * (rows == 2 ? r / 2 : r) + t;
      a[row * s.k + column] = f64(operand<u64>(warp, lane, d_count + r));
    }
    for (s32 r = 0; r < b_count; ++r) b[g * s.k + 4 * r + t] = f64(operand<u64>(warp, lane, d_count + a_count + r));
    for (s32 i = 0; i < d_count; ++i) {
      c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = f64(operand<u64>(warp, lane, d_count + a_count + b_count + i));
    }
  }
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    for (s32 i = 0; i < d_count; ++i) {
      const s32 row = g + 8 * (i / 2), column = 2 * t + i % 2;
      double sum = c[row * 8 + column];
      for (s32 k = 0; k < s.k; ++k) sum = std::fma(a[row * s.k + k], b[column * s.k + k], sum);
      if (has_operand(warp, lane, i)) operand<u64>(warp, lane, i) = bits(sum);
    }
  }
}

// Registers of C or D: 32-bit accumulators one each, f16 two.
s32 accumulators(Shape s, s32 element) { return (element == kEF16 ? s.m / 8 : s.m / 4); }

template <typename T, typename Sum, typename Load, typename Store, typename Read>
void multiply(Warp& warp, Shape s, s32 a_element, s32 b_element, s32 c_element, s32 d_element, Read read, Load load,
              Store store) {
  const s32 a_count = s.m * s.k * bits_of(a_element) / 1024, b_count = s.k * s.n * bits_of(b_element) / 1024;
  const s32 d_count = accumulators(s, d_element);
  alignas(64) T a[kMostRows * kMostDepth];
  alignas(64) T b[8 * kMostDepth];
  gather(warp, d_count, a_count, a_element, s.m == 16, s.k, a, read);
  gather(warp, d_count + a_count, b_count, b_element, false, s.k, b, read);
  Sum sums[kMostRows][8];
  for (s32 row = 0; row < s.m; ++row) {
    for (s32 column = 0; column < 8; ++column) {
      Sum sum = 0;
      for (s32 k = 0; k < s.k; ++k) sum += static_cast<Sum>(a[row * s.k + k]) * static_cast<Sum>(b[column * s.k + k]);
      sums[row][column] = sum;
    }
  }
  const s32 c_first = d_count + a_count + b_count;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    u32 out[8];
    for (s32 i = 0; i < s.m / 4; ++i) {
      const u32 c = c_element == kEF16 ? operand<u32>(warp, lane, c_first + i / 2) >> (16 * (i % 2)) & 0xffffu
                                       : operand<u32>(warp, lane, c_first + i);
      out[i] = store(sums[g + 8 * (i / 2)][2 * t + i % 2], load(c, c_element), d_element);
    }
    for (s32 r = 0; r < d_count; ++r) {
      if (has_operand(warp, lane, r)) {
        operand<u32>(warp, lane, r) = d_element == kEF16 ? out[2 * r] | out[2 * r + 1] << 16 : out[r];
      }
    }
  }
}

// One-bit elements: the sum counts the bits of a & b, or of a ^ b. A register holds 32 elements of a row.
void multiply_bits(Warp& warp, Shape s, bool both) {
  const s32 rows = s.m / 8, a_count = rows * s.k / 128, b_count = s.k / 128, d_count = 2 * rows;
  u32 a[kMostRows][8], b[8][8];
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    for (s32 r = 0; r < a_count; ++r) {
      a[rows == 2 ? g + 8 * (r % 2) : g][4 * (r / rows) + t] = operand<u32>(warp, lane, d_count + r);
    }
    for (s32 r = 0; r < b_count; ++r) b[g][4 * r + t] = operand<u32>(warp, lane, d_count + a_count + r);
  }
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const s32 g = static_cast<s32>(lane) / 4, t = static_cast<s32>(lane) % 4;
    for (s32 i = 0; i < d_count; ++i) {
      u32 sum = operand<u32>(warp, lane, d_count + a_count + b_count + i);
      for (s32 word = 0; word < s.k / 32; ++word) {
        const u32 x = a[g + 8 * (i / 2)][word], y = b[2 * t + i % 2][word];
        sum += popc(both ? x & y : x ^ y);
      }
      if (has_operand(warp, lane, i)) operand<u32>(warp, lane, i) = sum;
    }
  }
}

}  // namespace

// Volta's shape: lanes l to l + 3 and those 16 above them, l a multiple of 4, share a product of 8 by 8 by 4.
// Operands: D, A, B, C, each its registers; detail: A by rows? | B by rows? << 1, D of float32? | C << 1.
FAGEN_COLLECTIVE fagen_mma_quads(Machine&, Warp& warp, u32, const Collective& op) {
  const bool a_rows = op.detail[0] & 1, b_rows = op.detail[0] >> 1;
  const bool d_wide = op.detail[1] & 1, c_wide = op.detail[1] >> 1;
  const s32 d_count = d_wide ? 8 : 4;
  const auto half_of = [&](u32 lane, s32 first, s32 i) {
    return widened_f16(static_cast<u16>(operand<u32>(warp, lane, first + i / 2) >> (16 * (i % 2))));
  };
  for (u32 quad = 0; quad < 16; quad += 4) {
    float a[8][4], b[4][8];
    for (u32 n = 0; n < 8; ++n) {
      const u32 lane = quad + n % 4 + (n < 4 ? 0 : 16);
      const s32 within = static_cast<s32>(n % 4), upper = n < 4 ? 0 : 4;
      for (s32 i = 0; i < 4; ++i) {
        const float x = half_of(lane, d_count, i), y = half_of(lane, d_count + 2, i);
        (a_rows ? a[within + upper][i] : a[i + upper][within]) = x;
        (b_rows ? b[within][i + upper] : b[i][within + upper]) = y;
      }
    }
    for (u32 n = 0; n < 8; ++n) {
      const u32 lane = quad + n % 4 + (n < 4 ? 0 : 16);
      const s32 within = static_cast<s32>(n % 4), upper = n < 4 ? 0 : 4;
      // Accumulators of float32 lie otherwise than those of f16.
      const auto place = [&](bool wide, s32 i) {
        return wide ? std::pair<s32, s32>((within & 1) + (i & 2) + upper, (i & 4) + (within & 2) + (i & 1))
                    : std::pair<s32, s32>(within + upper, i);
      };
      u32 out[8];
      for (s32 i = 0; i < 8; ++i) {
        const auto [row, column] = place(d_wide, i);
        float sum = 0;
        for (s32 k = 0; k < 4; ++k) sum += a[row][k] * b[k][column];
        float start = 0;
        if (c_wide == d_wide) {
          start = c_wide ? f32(operand<u32>(warp, lane, d_count + 4 + i)) : half_of(lane, d_count + 4, i);
        } else {
          // C is f16 and D float32: another lane may hold this element of C.
          for (u32 other = 0; other < 8; ++other) {
            const s32 others_row = static_cast<s32>(other % 4) + (other < 4 ? 0 : 4);
            if (others_row == row) start = half_of(quad + other % 4 + (other < 4 ? 0 : 16), d_count + 4, column);
          }
        }
        out[i] = d_wide ? bits(canonical(sum + start))
                        : encode(static_cast<double>(sum) + start, kF16, Round::kNearestEven);
      }
      for (s32 r = 0; r < d_count; ++r) {
        if (!has_operand(warp, lane, r)) continue;
        operand<u32>(warp, lane, r) = d_wide ? out[r] : out[2 * r] | out[2 * r + 1] << 16;
      }
    }
  }
}

// Operands: D, A, B, C, each its registers; detail: m | n << 8 | k << 16, a | b << 8, d | c << 8, and
// satfinite | .and << 1.
FAGEN_COLLECTIVE fagen_mma(Machine&, Warp& warp, u32, const Collective& op) {
  const Shape s{op.detail[0] & 0xff, op.detail[0] >> 8 & 0xff, op.detail[0] >> 16};
  const s32 a = op.detail[1] & 0xff, b = op.detail[1] >> 8, d = op.detail[2] & 0xff, c = op.detail[2] >> 8;
  if (a == kEF64) {
    multiply_f64(warp, s);
  } else if (a == kEB1) {
    multiply_bits(warp, s, op.detail[3] >> 1 & 1);
  } else if (d == kES32) {
    const bool clamp = op.detail[3] & 1;
    multiply<s32, s64>(
        warp, s, a, b, c, d, integral, [](u32 pattern, s32) { return static_cast<s64>(static_cast<s32>(pattern)); },
        [clamp](s64 sum, s64 start, s32) {
          const s64 total = sum + start;
          if (!clamp) return static_cast<u32>(total);
          return static_cast<u32>(total > 2147483647 ? 2147483647 : total < -2147483648LL ? -2147483648LL : total);
        });
  } else if (a == kEF16 || a == kEBf16) {
    // Products of these are exact in float32; the hardware's order of adding is its own.
    multiply<float, float>(
        warp, s, a, b, c, d, [](u32 pattern, s32 element) { return static_cast<float>(floating(pattern, element)); },
        [](u32 pattern, s32 element) { return static_cast<float>(floating(pattern, element)); },
        [](float sum, float start, s32 element) {
          return element == kEF16 ? encode(static_cast<double>(sum) + start, kF16, Round::kNearestEven)
                                  : bits(canonical(sum + start));
        });
  } else {
    multiply<double, double>(
        warp, s, a, b, c, d, floating, floating, [](double sum, double start, s32 element) {
          return element == kEF16 ? encode(sum + start, kF16, Round::kNearestEven)
                                  : bits(canonical(static_cast<float>(sum + start)));
        });
  }
}

}  // namespace fagen::emulate
