// Places in shared memory that tiles take in turn, each with two barriers: `full` when a tile has come, `empty` when it
// is not needed any more.
#pragma once
#include "fagen/ptx/mbarrier.h"

namespace fagen {
namespace {

// How far one has come round a ring of kStages places. One register, where that is a power of two.
template <int kStages>
class Turn {
 public:
  __device__ __forceinline__ uint32_t stage() const { return count_ % kRound; }
  __device__ __forceinline__ uint32_t parity() const { return count_ / kRound & 1; }
  // So many places back.
  __device__ __forceinline__ uint32_t before(uint32_t places = 1) const {
    return stage() < places ? stage() + kStages - places : stage() - places;
  }
  __device__ __forceinline__ void next() {
    ++count_;
    if (kRound != kStages && stage() == kStages) count_ += kRound - kStages;
  }

 private:
  // The next power of two.
  static constexpr uint32_t round() {
    uint32_t places = 1;
    while (places < kStages) places *= 2;
    return places;
  }
  static constexpr uint32_t kRound = round();

  uint32_t count_ = 0;
};

template <int kStages>
struct Ring {
  static constexpr int kBytes = 2 * 8 * kStages;  // of barriers

  uint32_t barriers;  // in shared memory

  __device__ __forceinline__ uint32_t full(uint32_t stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const { return barriers + 8 * (kStages + stage); }

  // By one thread. So many arrivals say that a tile has come, beside its bytes, and that it is done with.
  __device__ __forceinline__ void make(uint32_t comings, uint32_t goings) const {
    for (uint32_t stage = 0; stage < kStages; ++stage) {
      ptx::mbarrier_init(full(stage), comings);
      ptx::mbarrier_init(empty(stage), goings);
    }
  }
  __device__ __forceinline__ void wait_full(const Turn<kStages>& turn) const {
    ptx::mbarrier_wait(full(turn.stage()), turn.parity());
  }
  __device__ __forceinline__ void wait_empty(const Turn<kStages>& turn) const {
    ptx::mbarrier_wait(empty(turn.stage()), turn.parity() ^ 1);
  }
};

}  // namespace
}  // namespace fagen
