// Barriers. Source: PTX ISA, bar and barrier.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;

// All threads of the block meet, warps at whichever of these instructions they have come to.
__device__ __forceinline__ void sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }

// The same, and whether `x` is true of any thread.
__device__ __forceinline__ bool sync_block_or(bool x) {
  uint32_t any;
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %1, 0; bar.red.or.pred p, 0, p; selp.u32 %0, 1, 0, p; }"
               : "=r"(any)
               : "r"(static_cast<uint32_t>(x))
               : "memory");
  return any != 0;
}

}  // namespace fagen::ptx
