// Order between the kernels of a stream, of which one may begin before the one before it has ended. Source: PTX ISA,
// griddepcontrol. sm_90.
#pragma once

namespace fagen::ptx {

// The next kernel may begin.
__device__ __forceinline__ void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Until the kernel before this one has ended, and what it has written is there.
__device__ __forceinline__ void wait_for_last() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace fagen::ptx
