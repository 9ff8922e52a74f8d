// Blocks of threads that add to the same sums one after the other by bulk copies, as KeyTurns has them: here each thread that
// starts such copies has a counter of its own, and none waits for the rest of its block.
#pragma once
#include "fagen/cuda/key_turns.h"
#include "fagen/ptx/bulk.h"

namespace fagen {
namespace {

template <int kCounters>  // of a block
class BulkTurns {
 public:
  // `counter` is this thread's, `first` says that no other block comes before its own.
  __device__ __forceinline__ BulkTurns(uint32_t* counter, bool first) : counter_(counter), first_(first) {}

  // Until the thread may add to what is at `place`, counted from 1 on.
  __device__ __forceinline__ void wait(uint32_t place) const {
    if (first_) return;
    while (ptx::ld_acquire(counter_ - kCounters) < place) {
    }
    ptx::fence_proxy_global();  // the counter is read in the ordinary way, what follows it are asynchronous copies
  }
  // It has: its copies are done, not just read.
  __device__ __forceinline__ void pass(uint32_t place) const {
    ptx::wait_for_bulk<0>();
    ptx::fence_proxy_global();
    ptx::st_release(counter_, place);
  }

 private:
  uint32_t* const counter_;
  const bool first_;
};

}  // namespace
}  // namespace fagen
