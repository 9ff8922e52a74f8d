// Copies between global and shared memory, each instruction by its name. Source: PTX ISA, Data Movement and Conversion
// Instructions. sm_75 has no asynchronous copies: there they are done at once, and waiting is nothing.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;
using std::uint64_t;

// An address as instructions on shared memory take it.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void st_shared_16(uint32_t shared, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ __forceinline__ void st_shared_4(uint32_t shared, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}

__device__ __forceinline__ uint4 ld_shared_16(uint32_t shared) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}

// To global memory, by one instruction: the compiler was seen to make four of it.
__device__ __forceinline__ void st_global_16(void* global, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

__device__ __forceinline__ void st_global_4(void* global, uint32_t x) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(global), "r"(x) : "memory");
}

// Added to what is there, in whatever order threads come.
__device__ __forceinline__ void add_global(float* global, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(global), "f"(x) : "memory");
}
__device__ __forceinline__ void or_global(uint64_t* global, uint64_t bits) {
  asm volatile("red.relaxed.gpu.global.or.b64 [%0], %1;" ::"l"(global), "l"(bits) : "memory");
}
// The same, and what was there before.
__device__ __forceinline__ uint64_t fetch_add_global(uint64_t* global, uint64_t x) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(before) : "l"(global), "l"(x) : "memory");
  return before;
}
__device__ __forceinline__ uint32_t fetch_add_global(uint32_t* global, uint32_t x) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], %2;" : "=r"(before) : "l"(global), "r"(x) : "memory");
  return before;
}

// What other blocks of threads wait for: who sees x stored sees all that came before it.
__device__ __forceinline__ void st_release(uint32_t* global, uint32_t x) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(global), "r"(x) : "memory");
}
__device__ __forceinline__ uint32_t ld_acquire(const uint32_t* global) {
  uint32_t x;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(global) : "memory");
  return x;
}

__device__ __forceinline__ void st_shared_2x8(uint32_t shared, uint64_t x, uint64_t y) {
  asm volatile("st.shared.v2.b64 [%0], {%1, %2};" ::"r"(shared), "l"(x), "l"(y) : "memory");
}

__device__ __forceinline__ uint64_t ld_shared_8(uint32_t shared) {
  uint64_t x;
  asm volatile("ld.shared.b64 %0, [%1];" : "=l"(x) : "r"(shared) : "memory");
  return x;
}

// By one lane of a warp, not by a branch (see mbarrier_arrive_if); the others get 0.
__device__ __forceinline__ uint64_t ld_shared_8_if(bool reads, uint32_t shared) {
  uint64_t x = 0;
  asm volatile("{ .reg .pred reads; setp.ne.u32 reads, %1, 0; @reads ld.shared.b64 %0, [%2]; }"
               : "+l"(x)
               : "r"(static_cast<uint32_t>(reads)), "r"(shared)
               : "memory");
  return x;
}

__device__ __forceinline__ uint32_t ld_shared_4(uint32_t shared) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}

__device__ __forceinline__ float4 ld_shared_4x4(uint32_t shared) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}

// Bits are set, or all replaced, at once.
__device__ __forceinline__ void or_shared(uint32_t shared, uint32_t bits) {
  asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared), "r"(bits) : "memory");
}
__device__ __forceinline__ uint32_t exchange_shared(uint32_t shared, uint32_t bits) {
  uint32_t before;
  asm volatile("atom.shared.exch.b32 %0, [%1], %2;" : "=r"(before) : "r"(shared), "r"(bits) : "memory");
  return before;
}

__device__ __forceinline__ uint16_t ld_shared_2(uint32_t shared) {
  uint16_t x;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x) : "r"(shared) : "memory");
  return x;
}

__device__ __forceinline__ void st_shared_2(uint32_t shared, uint16_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(shared), "h"(x) : "memory");
}

// 16 bytes from global to shared memory, past the first-level cache, or zeros if they are not `real`.
__device__ __forceinline__ void copy_16(uint32_t shared, const void* global, bool real) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(real ? 16 : 0)
               : "memory");
#else
  st_shared_16(shared, real ? *static_cast<const uint4*>(global) : make_uint4(0, 0, 0, 0));
#endif
}

// Ends the thread's current group of copies.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Until no more than kPending of the thread's groups are in flight.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace fagen::ptx
