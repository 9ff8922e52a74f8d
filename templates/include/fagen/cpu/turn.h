// Taking turns: how several threads add to one sum and it comes out the same on every run.
//
// The work items that add to a sum stand in a line. Each announces how far it has got, its place, and adds to a part of
// the sum only when the one before it has got past that part. An item waits only for items that were started before
// it, so where threads take items in order, some item can always go on.
#pragma once
#include <sched.h>

#include <cstdint>

namespace fagen {
namespace {

// Alone in its line of the cache: one thread writes it while another watches.
struct alignas(64) Turn {
  int64_t place;
};

constexpr int kPatience = 1000;  // looks at a place before the core is offered to another thread, which may hold it up

inline void wait_for(const Turn& turn, int64_t place) {
  for (int looks = 0; __atomic_load_n(&turn.place, __ATOMIC_ACQUIRE) < place; ++looks) {
    if (looks >= kPatience) sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
}

inline void announce(Turn& turn, int64_t place) { __atomic_store_n(&turn.place, place, __ATOMIC_RELEASE); }

}  // namespace
}  // namespace fagen
