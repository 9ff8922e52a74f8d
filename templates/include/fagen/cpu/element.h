// The element types of q, k, v and o in memory, and their conversions from and to float32: exact one way, to the
// nearest (ties to even) the other, with subnormals, infinities and NaN kept.
#pragma once
#include "fagen/cpu/simd.h"

namespace fagen {
namespace {

using f32 = float;
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

constexpr float largest(const f32*) { return 3.40282347e38f; }
constexpr float largest(const bf16*) { return 3.38953139e38f; }
constexpr float largest(const f16*) { return 65504.0f; }

typedef uint16_t vu16 __attribute__((vector_size(2 * kLanes)));
typedef uint16_t vu16_at __attribute__((vector_size(2 * kLanes), aligned(2), may_alias));

// kLanes 16-bit elements, zero-extended.
inline vu load_bits(const uint16_t* p) {
  return __builtin_convertvector(vu16(*reinterpret_cast<const vu16_at*>(p)), vu);
}
inline void store_bits(uint16_t* p, vu v) { *reinterpret_cast<vu16_at*>(p) = __builtin_convertvector(v, vu16); }

inline vf widen_bf16(vu bits) { return (vf)(bits << 16); }
inline vu narrow_bf16(vf x) {
  const vu bits = (vu)x;
  return x == x ? (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16 : (bits >> 16) | 0x40u;
}

inline vf widen_f16(vu bits) {
  const vu magnitude = (bits & 0x7fffu) << 13;
  const vu finite = (vu)((vf)magnitude * 0x1p112f);  // moves the exponent from f16's bias to f32's
  const vu special = magnitude | 0x7f800000u;
  return (vf)((magnitude >= 0x0f800000u ? special : finite) | (bits & 0x8000u) << 16);
}
inline vu narrow_f16(vf x) {
  const vu magnitude = (vu)x & 0x7fffffffu;
  const vu normal = (magnitude + (0xc8000fffu + ((magnitude >> 13) & 1u))) >> 13;
  const vu subnormal = (vu)((vf)magnitude + 0.5f) - 0x3f000000u;  // the sum rounds at f16's last place, 2^-24
  const vu large = magnitude > 0x7f800000u ? (vu)(vi{} + 0x7e00) : (vu)(vi{} + 0x7c00);
  const vu small = magnitude < 0x38800000u ? subnormal : normal;
  return (magnitude >= 0x477ff000u ? large : small) | ((vu)x >> 16 & 0x8000u);  // from 65520 on: infinity
}

// kLanes adjacent elements.
inline vf load_floats(const f32* p) { return load(p); }
inline vf load_floats(const bf16* p) { return widen_bf16(load_bits(&p->bits)); }
inline vf load_floats(const f16* p) { return widen_f16(load_bits(&p->bits)); }
inline void store_floats(f32* p, vf v) { store(p, v); }
inline void store_floats(bf16* p, vf v) { store_bits(&p->bits, narrow_bf16(v)); }
inline void store_floats(f16* p, vf v) { store_bits(&p->bits, narrow_f16(v)); }

// kLanes elements `stride` apart, of which the first `count` exist: zeros after them, and no memory touched there.
template <class T>
inline vf load_floats(const T* p, int64_t stride, int count) {
  if (stride == 1 && count >= kLanes) return load_floats(p);
  T lanes[kLanes] = {};
  for (int lane = 0; lane < (count < kLanes ? count : kLanes); ++lane) lanes[lane] = p[lane * stride];
  return load_floats(lanes);
}
template <class T>
inline void store_floats(T* p, int64_t stride, int count, vf v) {
  if (stride == 1 && count >= kLanes) return store_floats(p, v);
  T lanes[kLanes];
  store_floats(lanes, v);
  for (int lane = 0; lane < (count < kLanes ? count : kLanes); ++lane) p[lane * stride] = lanes[lane];
}

}  // namespace
}  // namespace fagen
