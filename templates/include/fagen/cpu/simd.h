// Vectors of the ISA a unit is compiled for, as GCC/Clang vector extensions: operators work lane by lane, a
// comparison gives a vi of 0 and -1, `m ? a : b` selects, and a scalar operand is broadcast.
//
// Everything in these headers has internal linkage: units of several ISAs may meet in one process.
#pragma once
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// Unrolls the loop that follows completely: what keeps an array of accumulators in registers.
#if defined(__clang__)
#define FAGEN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FAGEN_UNROLL _Pragma("GCC unroll 64")
#endif

namespace fagen {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));
typedef uint32_t vu __attribute__((vector_size(4 * kLanes)));

namespace {

// Loads and stores of kLanes elements at any alignment.
typedef float vf_at __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t vi_at __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef uint32_t vu_at __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
inline vf load(const float* p) { return *reinterpret_cast<const vf_at*>(p); }
inline vi load(const int32_t* p) { return *reinterpret_cast<const vi_at*>(p); }
inline vu load(const uint32_t* p) { return *reinterpret_cast<const vu_at*>(p); }
inline void store(float* p, vf v) { *reinterpret_cast<vf_at*>(p) = v; }
inline void store(int32_t* p, vi v) { *reinterpret_cast<vi_at*>(p) = v; }
inline void store(uint32_t* p, vu v) { *reinterpret_cast<vu_at*>(p) = v; }

inline vf broadcast(float x) { return x - vf{}; }
inline vi broadcast(int32_t x) { return x - vi{}; }

// {0, 1, ..., kLanes - 1}
inline vi lane_index() {
  vi v;
  FAGEN_UNROLL
  for (int lane = 0; lane < kLanes; ++lane) v[lane] = lane;
  return v;
}

// x, rounded before anything is added to it: a multiplication that made it is not fused with what follows, so that
// every kernel finds the same x.
inline vf rounded(vf x) {
#if defined(__x86_64__)
  asm("" : "+v"(x));  // GCC's assoc_barrier takes vectors apart, where there is one
#else
  asm("" : "+m"(x));
#endif
  return x;
}

// Lanes of a, then those of b, numbered in this order: one for each number.
template <int... lanes, class Vector>
inline Vector shuffle(Vector a, Vector b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, lanes...);
#else
  return __builtin_shuffle(a, b, decltype(a < b){lanes...});
#endif
}

// The larger of two; the second where they are unordered, so a NaN in `b` survives and one in `a` does not.
inline vf larger(vf a, vf b) {
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b);  // the same in one instruction
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return a > b ? a : b;
#endif
}

inline bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

// Lane n takes the value of lane n + by.
template <int by>
inline vf rotate(vf v) {
  constexpr int k = kLanes;
#if defined(__AVX512F__)
  return shuffle<by, (1 + by) % k, (2 + by) % k, (3 + by) % k, (4 + by) % k, (5 + by) % k, (6 + by) % k, (7 + by) % k,
                 (8 + by) % k, (9 + by) % k, (10 + by) % k, (11 + by) % k, (12 + by) % k, (13 + by) % k, (14 + by) % k,
                 (15 + by) % k>(v, v);
#elif defined(__AVX2__)
  return shuffle<by, (1 + by) % k, (2 + by) % k, (3 + by) % k, (4 + by) % k, (5 + by) % k, (6 + by) % k, (7 + by) % k>(
      v, v);
#else
  return shuffle<by, (1 + by) % k, (2 + by) % k, (3 + by) % k>(v, v);
#endif
}

inline float sum_lanes(vf v) {
#if defined(__AVX512F__)
  v += rotate<8>(v);
#endif
#if defined(__AVX2__)
  v += rotate<4>(v);
#endif
  v += rotate<2>(v);
  return (v + rotate<1>(v))[0];
}

inline float max_lanes(vf v) {
#if defined(__AVX512F__)
  v = larger(v, rotate<8>(v));
#endif
#if defined(__AVX2__)
  v = larger(v, rotate<4>(v));
#endif
  v = larger(v, rotate<2>(v));
  return larger(v, rotate<1>(v))[0];
}

}  // namespace
}  // namespace fagen
