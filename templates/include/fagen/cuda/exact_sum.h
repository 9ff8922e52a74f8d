// Sums of float32 numbers that are the same in whatever order they are added: no bit is rounded away. A sum is an integer
// of kExactWords - 1 words of 64 bits, in units of the smallest float32 number, which 2^40 of the largest do not overflow;
// the last word says which of NaN and the infinities were among them.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/params.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

using std::uint64_t;

constexpr int kSumWords = kExactWords - 1;
constexpr uint64_t kSumHasNan = 1, kSumHasInfinity = 2, kSumHasMinusInfinity = 4;

__device__ __forceinline__ void add_exactly(uint64_t* sum, float x) {
  const uint32_t bits = __float_as_uint(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
  const bool negative = bits >> 31 != 0;
  if (exponent == 255) {
    ptx::or_global(sum + kSumWords, fraction != 0 ? kSumHasNan : negative ? kSumHasMinusInfinity : kSumHasInfinity);
    return;
  }
  const uint64_t digits = exponent == 0 ? fraction : fraction | 0x800000;
  const uint32_t place = exponent == 0 ? 0 : exponent - 1, shift = place % 64;
  const uint64_t low = digits << shift, high = shift == 0 ? 0 : digits >> (64 - shift);
  uint64_t part = low, next = high, carry = 0;
#pragma unroll 1
  for (uint32_t word = place / 64; word < kSumWords && (part | next | carry) != 0; ++word) {
    part += carry;  // never overflows: a carry is 1, and what it meets is no more than 24 bits
    carry = 0;
    if (part != 0) {
      const uint64_t before = ptx::fetch_add_global(sum + word, negative ? 0 - part : part);
      carry = negative ? before < part : before + part < part;
    }
    part = next, next = 0;
  }
}

// A sum that no one adds to any more.
__device__ __forceinline__ float value_of_exact(const uint64_t* sum) {
  const uint64_t special = sum[kSumWords];
  if (special != 0) {
    const float infinity = special == kSumHasInfinity ? kInfinity : -kInfinity;
    return special == kSumHasInfinity || special == kSumHasMinusInfinity ? infinity : __uint_as_float(0x7fffffff);
  }
  const bool negative = sum[kSumWords - 1] >> 63 != 0;
  double value = 0.0, unit = 0x1p-149;
  uint64_t carry = negative;  // -x is ~x + 1
#pragma unroll
  for (int word = 0; word < kSumWords; ++word, unit *= 0x1p64) {
    const uint64_t digits = (negative ? ~sum[word] : sum[word]) + carry;
    carry = carry != 0 && digits == 0;
    value += static_cast<double>(digits) * unit;
  }
  return static_cast<float>(negative ? -value : value);
}

}  // namespace
}  // namespace fagen
