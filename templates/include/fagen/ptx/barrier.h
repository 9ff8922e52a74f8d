// Barriers. Source: PTX ISA, bar and barrier.
#pragma once

namespace fagen::ptx {

// All threads of the block meet, warps at whichever of these instructions they have come to.
__device__ __forceinline__ void sync_block() { asm volatile("bar.sync 0;" ::: "memory"); }

}  // namespace fagen::ptx
