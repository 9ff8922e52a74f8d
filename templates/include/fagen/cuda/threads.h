// Which thread this is. In unsigned arithmetic, where a remainder of a power of two is one instruction.
#pragma once

namespace fagen {
namespace {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x % 32); }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x / 32); }

}  // namespace
}  // namespace fagen
