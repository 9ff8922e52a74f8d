// Lanes of a warp that run the same statements, and what they compute together.
#pragma once
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// Some of them: which ones, all of these know.
class Lanes {
 public:
  static __device__ __forceinline__ Lanes all() { return {~0u, true}; }

  // Those for which something is true, which all of these ask together. As a condition: whether this lane is among them.
  __device__ __forceinline__ Lanes where(bool condition) const { return {__ballot_sync(mask_, condition), condition}; }
  explicit __device__ __forceinline__ operator bool() const { return here_; }

  __device__ __forceinline__ uint32_t mask() const { return mask_; }
  __device__ __forceinline__ int count() const { return __popc(static_cast<int>(mask_)); }
  // Of these lanes, those before this one.
  __device__ __forceinline__ int before() const { return __popc(static_cast<int>(mask_ & ((1u << lane_id()) - 1))); }

  template <class T>
  __device__ __forceinline__ T from(int lane, T x) const {
    return __shfl_sync(mask_, x, lane);
  }

  // The least x of all.
  __device__ __forceinline__ int32_t least(int32_t x) const {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(mask_, x);
#else
    // Each looks at the next of a ring, then at the one that this one has looked at last, and so on.
    const uint32_t above = mask_ & ~1u << lane_id();
    int next = __ffs(static_cast<int>(above != 0 ? above : mask_)) - 1;
#pragma unroll 1
    for (int step = 0; step < 5; ++step) {
      const int32_t other = from(next, x);
      x = other < x ? other : x;
      next = from(next, next);
    }
    return x;
#endif
  }
  __device__ __forceinline__ int64_t least(int64_t x) const {
    const int32_t high = least(static_cast<int32_t>(x >> 32));
    // The lower half, as an integer with a sign.
    const int32_t low = static_cast<int32_t>(static_cast<uint32_t>(x) ^ 0x80000000u);
    const int32_t least_low = least(static_cast<int32_t>(x >> 32) == high ? low : INT32_MAX);
    return static_cast<int64_t>(high) << 32 | (static_cast<uint32_t>(least_low) ^ 0x80000000u);
  }
  template <class Int>
  __device__ __forceinline__ Int greatest(Int x) const {
    return ~least(~x);
  }

 private:
  __device__ __forceinline__ Lanes(uint32_t mask, bool here) : mask_(mask), here_(here) {}

  uint32_t mask_;
  bool here_;
};

}  // namespace
}  // namespace fagen
