// The fastest this CPU can multiply and add: independent chains of fused multiply-adds, nothing else.
// `fagen bench` prints the rate beside every figure as the limit.
#include <cstdint>

#include "fagen/cpu/simd.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace {
constexpr int kChains = 12;  // latency 4 times 2 pipes, and a margin; fits 16 vector registers
}

// Runs `rounds` rounds of kChains float32 multiply-adds a lane; returns the operations done (2 a multiply-add).
extern "C" double fagen_peak_float32(int64_t rounds, float* sink) {
  using fagen::vf;
  vf acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = vf{} + static_cast<float>(c);
  const vf a = vf{} + sink[0], b = vf{} + sink[1];  // run-time values: the loop must not fold
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16  // or the chains live in memory
    for (int c = 0; c < kChains; ++c) acc[c] = acc[c] * a + b;
  }
  vf total{};
  for (int c = 0; c < kChains; ++c) total += acc[c];
  sink[2] = total[0];
  return 2.0 * kChains * fagen::kLanes * static_cast<double>(rounds);
}

// The same with bf16 dot products, or 0 where the CPU has none.
extern "C" double fagen_peak_bf16(int64_t rounds, float* sink) {
#if defined(__AVX512BF16__)
  __m512 acc[kChains];
  for (int c = 0; c < kChains; ++c) acc[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512bh a = (__m512bh)_mm512_set1_ps(sink[0]);
  const __m512bh b = (__m512bh)_mm512_set1_ps(sink[1]);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 16  // or the chains live in memory
    for (int c = 0; c < kChains; ++c) acc[c] = _mm512_dpbf16_ps(acc[c], a, b);
  }
  __m512 total = _mm512_setzero_ps();
  for (int c = 0; c < kChains; ++c) total = _mm512_add_ps(total, acc[c]);
  sink[2] = total[0];
  return 4.0 * kChains * 16 * static_cast<double>(rounds);
#else
  (void)rounds;
  (void)sink;
  return 0.0;
#endif
}
