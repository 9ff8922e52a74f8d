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
  // `counter` is this thread's, 0 at first; `before` blocks come before its own.
  __device__ __forceinline__ BulkTurns(uint32_t* counter, int32_t before) : counter_(counter), asked_(counter), before_(before) {}

  // Until the thread may add to what is at `place`, counted from 1 on and growing. A block before that is done stops no one,
  // nor does its end say anything of those before it, which are asked then.
  __device__ __forceinline__ void wait(uint32_t place) {
    while (before_ > 0) {
      const uint32_t passed = ptx::ld_acquire(asked_ - kCounters);
      if (passed == kDone) {
        asked_ -= kCounters, --before_;
      } else if (passed >= place) {
        break;
      }
    }
    if (place > passed_ + 1) ptx::st_release(counter_, place - 1);  // what it leaves out, all have passed
    ptx::fence_proxy_global();  // counters are read in the ordinary way, what follows are asynchronous copies
  }
  // It has: its copies are done, not just read.
  __device__ __forceinline__ void pass(uint32_t place) {
    ptx::wait_for_bulk<0>();
    ptx::fence_proxy_global();
    ptx::st_release(counter_, place);
    passed_ = place;
  }
  // It has passed all that it adds to.
  __device__ __forceinline__ void end() const { ptx::st_release(counter_, kDone); }

 private:
  static constexpr uint32_t kDone = ~0u;

  uint32_t *const counter_, *asked_;
  int32_t before_;
  uint32_t passed_ = 0;
};

}  // namespace
}  // namespace fagen
