// Barriers in shared memory, which count arrivals and the bytes of copies. Source: PTX ISA, mbarrier. sm_90.
#pragma once
#include <cstdint>

namespace fagen::ptx {

using std::uint32_t;

// `count` arrivals end a phase.
__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// Barriers that this thread has made are there for the copies that come to them, and for other blocks of the cluster.
__device__ __forceinline__ void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// By one lane of a warp. Not by a branch: behind one, the compiler does not take the lanes to be together.
__device__ __forceinline__ void mbarrier_arrive_if(bool arrives, uint32_t barrier) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.u32 arrives, %0, 0;\n"
      "@arrives mbarrier.arrive.shared::cta.b64 _, [%1];\n"
      "}" ::"r"(static_cast<uint32_t>(arrives)), "r"(barrier) : "memory");
}

// An arrival that tells how many bytes will be copied in this phase.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Until the phase of this parity has ended. The loop is in the assembly: where it is not, the compiler does not give a
// warpgroup the registers that it asks for.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier), "r"(parity) : "memory");
}

}  // namespace fagen::ptx
