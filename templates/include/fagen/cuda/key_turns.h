// Blocks of threads that add to the same sums one after the other, so that these are the same each time: those of the
// tiles of keys of a key head. Each has a counter of how far it has come among the tiles of query rows, which all of them
// visit in the same order; the next adds to a tile when the one before it has passed that.
#pragma once
#include "fagen/ptx/barrier.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// The number of a block's work. Blocks are numbered as they begin: whoever waits for another waits for one that has begun.
// All threads call it; `shared` is 4 bytes.
__device__ __forceinline__ uint32_t draw_work(uint32_t* drawn, uint32_t shared) {
  if (threadIdx.x == 0) ptx::st_shared_4(shared, ptx::fetch_add_global(drawn, 1));
  ptx::sync_block();
  return ptx::ld_shared_4(shared);
}

class KeyTurns {
 public:
  // `counter` is this block's, `first` says that no other comes before it.
  __device__ __forceinline__ KeyTurns(uint32_t* counter, bool first) : counter_(counter), first_(first) {}

  // Until it may add to what is at `place`, counted from 1 on; all threads call these.
  __device__ __forceinline__ void wait(uint32_t place) const {
    if (threadIdx.x == 0 && !first_)
      while (ptx::ld_acquire(counter_ - 1) < place) {
      }
    ptx::sync_block();
  }
  // It has.
  __device__ __forceinline__ void pass(uint32_t place) const {
    ptx::sync_block();
    if (threadIdx.x == 0) ptx::st_release(counter_, place);
  }

 private:
  uint32_t* const counter_;
  const bool first_;
};

}  // namespace
}  // namespace fagen
