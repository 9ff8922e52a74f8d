// What a warpgroup, four warps, does together: order among its products, and how many registers it has. The products
// themselves are printed for each kernel's sizes. Source: PTX ISA, wgmma and setmaxnreg. sm_90a.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;
using std::uint64_t;

// Before products that take registers which were written, or sums that others than products have touched.
__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends the current group of products.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until no more than kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Sums that a wait was for: the compiler is not to move their use to before it.
template <int kTiles>
__device__ __forceinline__ void settle(float (&x)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
    asm volatile("" : "+f"(x[n][0]), "+f"(x[n][1]), "+f"(x[n][2]), "+f"(x[n][3])::"memory");
}

// Rows of 128 bytes in shared memory, swizzled, eight of them a pattern of 1024 bytes: as an operand of a product whose
// inner dimension lies along the rows.
__device__ __forceinline__ uint64_t rows_operand(uint32_t shared) {
  return uint64_t{shared >> 4 & 0x3fff} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
// The same, whose inner dimension is across the rows, and the next 64 elements of the other lie `slab` bytes on.
__device__ __forceinline__ uint64_t columns_operand(uint32_t shared, uint32_t slab) {
  return uint64_t{shared >> 4 & 0x3fff} | uint64_t{slab >> 4} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Registers of each thread of the warpgroup from here on.
template <int kCount>
__device__ __forceinline__ void give_up_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace fagen::ptx
