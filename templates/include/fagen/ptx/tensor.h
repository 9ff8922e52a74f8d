// Copies of boxes of tensors by the tensor memory accelerator. Source: PTX ISA, cp.async.bulk.tensor. sm_90.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::int32_t;
using std::uint32_t;

// A tensor in global memory and the boxes it is copied by, as the driver encodes them; a parameter of a kernel.
struct alignas(64) TensorMap {
  char bytes[128];
};

// The box at element x of row y of plane z of w (of u), into shared memory; its bytes complete on `barrier`. What lies outside
// the tensor is zeros.
__device__ __forceinline__ void copy_box(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                                         int32_t z, int32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier) : "memory");
}

__device__ __forceinline__ void copy_box(uint32_t shared, const TensorMap& map, uint32_t barrier, int32_t x, int32_t y,
                                         int32_t z, int32_t w, int32_t u) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], "
      "[%7];" ::"r"(shared), "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(u), "r"(barrier) : "memory");
}

// What this thread has stored in shared memory is there for those who read it by the other way: copies of boxes, and
// products of warpgroups. They must still be told, by a barrier.
__device__ __forceinline__ void fence_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace fagen::ptx
