// Barriers. Source: PTX ISA, bar and barrier.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;

// All threads of the block meet, warps at whichever of these instructions they have come to.
__device__ __forceinline__ void sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }

// `kCount` threads meet at barrier `name` (1 to 15), whole warps of them; those that only arrive do not wait.
template <int kCount>
__device__ __forceinline__ void sync_named(int name) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void arrive_named(int name) {
  asm volatile("bar.arrive %0, %1;" ::"r"(name), "n"(kCount) : "memory");
}

// The same, and they learn whether `x` is true of all.
template <int kCount>
__device__ __forceinline__ bool sync_named_and(int name, bool x) {
  uint32_t all;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.and.pred p, %2, %3, p; selp.u32 %0, 1, 0, p; }"
               : "=r"(all)
               : "r"(static_cast<uint32_t>(x)), "r"(name), "n"(kCount)
               : "memory");
  return all != 0;
}

// All threads of the block meet, and learn whether `x` is true of any.
__device__ __forceinline__ bool sync_block_or(bool x) {
  uint32_t any;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.or.pred p, 0, p; selp.u32 %0, 1, 0, p; }"
               : "=r"(any)
               : "r"(static_cast<uint32_t>(x))
               : "memory");
  return any != 0;
}

}  // namespace fagen::ptx
