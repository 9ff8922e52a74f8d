// Single instructions of arithmetic. Source: PTX ISA, Floating Point Instructions and Data Movement (cvt, shfl).
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;

__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of normal numbers, 0 and inf, to the last bit or two.
__device__ __forceinline__ float rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Makes the compiler forget what it knows of x.
__device__ __forceinline__ void hide(int& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void hide(uint32_t& x) { asm volatile("" : "+r"(x)); }
// The same of what lies in memory.
template <class T>
__device__ __forceinline__ void hide_contents(T& x) {
  asm volatile("" ::"l"(&x) : "memory");
}

// Where this stands, x, which is 0 or more, has been computed: an empty statement does not keep the assembler from moving
// that to behind a wait, a store that is never done does. `negative` is a number that the assembler does not know to be:
// what it knows is that exponentials are not. `shared` is any place in shared memory.
__device__ __forceinline__ void compute_here(float x, float negative, uint32_t shared) {
  asm volatile("{ .reg .pred never; setp.lt.f32 never, %0, %1; @never st.shared.f32 [%2], %0; }" ::"f"(x), "f"(negative),
               "r"(shared)
               : "memory");
}

// What depends on y is not computed before this, nor before x has been: by a load that is never done.
__device__ __forceinline__ void compute_later(float& y, float x, float negative, uint32_t shared) {
  asm volatile("{ .reg .pred never; setp.lt.f32 never, %1, %2; @never ld.shared.f32 %0, [%3]; }" : "+f"(y) : "f"(x), "f"(negative),
               "r"(shared)
               : "memory");
}

// Two float32 numbers, rounded, `low` in the lower half.
__device__ __forceinline__ uint32_t cvt_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
__device__ __forceinline__ uint32_t cvt_f16x2(float low, float high) {  // as two conversions, which sm_75 has
  uint32_t d;
  asm("{ .reg .b16 x, y; cvt.rn.f16.f32 x, %1; cvt.rn.f16.f32 y, %2; mov.b32 %0, {x, y}; }" : "=r"(d) : "f"(low), "f"(high));
  return d;
}

// a * b + c of pairs of numbers. bf16: sm_80.
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace fagen::ptx
