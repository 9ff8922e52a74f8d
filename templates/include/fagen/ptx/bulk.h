// Copies of adjacent bytes between global and shared memory, and sums by such copies, whole at a time. Addresses and sizes
// are multiples of 16 bytes. Source: PTX ISA, cp.async.bulk and cp.reduce.async.bulk. sm_90.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;

// Into shared memory; the bytes complete on `barrier`.
__device__ __forceinline__ void copy_bulk(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// Adds float32 numbers to those in global memory, each as one that no other addition comes between.
__device__ __forceinline__ void add_bulk(float* global, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global), "r"(shared),
               "r"(bytes)
               : "memory");
}

// Ends the thread's current group of copies out of shared memory.
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until no more than kPending of the thread's groups have still to read shared memory, or to be done.
template <int kPending>
__device__ __forceinline__ void wait_for_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_for_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// What this thread knows of global memory counts for asynchronous copies that it starts, and the other way round.
__device__ __forceinline__ void fence_proxy_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace fagen::ptx
