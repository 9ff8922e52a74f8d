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

  // Whether the thread may add to what is at `place`, counted from 1 on and growing: the blocks before have passed it. One
  // that is done stops no one, nor does its end say anything of those before it, which are asked then.
  __device__ __forceinline__ bool may(uint32_t place) {
    while (before_ > 0 && seen_ < place) {
      seen_ = ptx::ld_acquire(asked_ - kCounters);
      if (seen_ != kDone) return seen_ >= place;
      asked_ -= kCounters, --before_, seen_ = 0;
    }
    return true;
  }
  // Until it may.
  __device__ __forceinline__ void begin(uint32_t place, bool may_already) {
    while (!may_already) may_already = may(place);
    if (place > adding_ + 1) pass<0>(place - 1);  // what it leaves out, all have passed
    ptx::fence_proxy_global();  // counters are read in the ordinary way, what follows are asynchronous copies
    adding_ = place;
  }
  // One copy to where it adds has been started: what it added before is passed, whose copies had the time since to end.
  __device__ __forceinline__ void pass_before() {
    if (passed_ + 1 < adding_) pass<1>(adding_ - 1);
  }
  // It has passed all that it adds to.
  __device__ __forceinline__ void end() { pass<0>(kDone); }

 private:
  static constexpr uint32_t kDone = ~0u;

  // Copies are done, not just read, but for the last kPending ones.
  template <int kPending>
  __device__ __forceinline__ void pass(uint32_t place) {
    ptx::wait_for_bulk<kPending>();
    ptx::fence_proxy_global();
    ptx::st_release(counter_, place);
    passed_ = place;
  }

  uint32_t *const counter_, *asked_;
  int32_t before_;
  uint32_t passed_ = 0, adding_ = 0;  // places: the last one that is passed, and that it adds to
  uint32_t seen_ = 0;                 // and that the block before was seen to have passed
};

}  // namespace
}  // namespace fagen
