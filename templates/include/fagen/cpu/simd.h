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

// The larger of two; the second where they are unordered, so a NaN in `b` survives and one in `a` does not.
inline vf larger(vf a, vf b) { return a > b ? a : b; }

inline bool any(vi mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#else
  int32_t bits = 0;
  FAGEN_UNROLL
  for (int lane = 0; lane < kLanes; ++lane) bits |= mask[lane];
  return bits != 0;
#endif
}

inline float sum_lanes(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0];
#endif
}

inline float max_lanes(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane)
      lanes[lane] = lanes[lane] > lanes[lane + half] ? lanes[lane] : lanes[lane + half];
  return lanes[0];
#endif
}

}  // namespace
}  // namespace fagen
