// What orders threads: barriers, fences, releases and acquires, mbarriers.
#include "machine.h"

namespace fagen::emulate {

void join(Clocks& into, u32 block, const Clock& clock) {
  Clock& known = into[block];
  if (known.empty()) {
    known = clock;
  } else {
    join(known, clock);
  }
}

void join(Clocks& into, const Clocks& from) {
  for (const auto& [block, clock] : from) join(into, block, clock);
}

namespace {

ThreadMore& more(Thread& t) { return t.block->more[t.index]; }

// All that a thread knows, its own block among the others.
Clocks known(Thread& t) {
  Clocks all = more(t).others;
  all[t.block->index] = more(t).clock;
  return all;
}

void take_in(Thread& t, const Clocks& clocks) {
  for (const auto& [block, clock] : clocks) {
    if (block == t.block->index) {
      join(more(t).clock, clock);
    } else {
      join(more(t).others, block, clock);
    }
  }
}

std::unordered_map<u64, Published>& places(Thread& t, const Range& range) {
  return range.space == Space::kShared ? t.block->published : t.machine->published;
}

}  // namespace

void publish(Thread& t, const Range& range, Order order, Scope scope, bool atomic) {
  const bool release = order == Order::kRelease || order == Order::kAcquireRelease;
  auto& all = places(t, range);
  const u64 self = static_cast<u64>(t.block->index) << 32 | t.index;
  if (!atomic) {
    // A plain store ends the sequence that a release of another thread's began.
    const auto found = all.find(range.address);
    if (found != all.end() && found->second.owner != self) all.erase(found);
  }
  const Fenced& fenced = more(t).fenced;
  if (!release && fenced.narrow.empty()) return;
  const auto [place, fresh] = all.try_emplace(range.address);
  Published& published = place->second;
  published.owner = fresh || published.owner == self ? self : ~u64{0};
  const Clocks now = release ? known(t) : Clocks{};
  join(published.narrow[t.block->index], release ? now : fenced.narrow);
  if (is_wide(scope)) join(published.wide, release ? now : fenced.wide);
  published.version = ++t.machine->releases;
  if (release) tick(t);
}

void learn(Thread& t, const Range& range, Order order, Scope scope) {
  const auto& all = places(t, range);
  const auto found = all.find(range.address);
  if (found == all.end()) return;
  const Published& published = found->second;
  // Who spins sees the same release again and again.
  u64* const learnt = more(t).learnt;
  const u64 how = 1 + static_cast<u64>(order) * 8 + static_cast<u64>(scope);
  if (learnt[0] == range.address && learnt[1] == published.version && learnt[2] == how) return;
  learnt[0] = range.address;
  learnt[1] = published.version;
  learnt[2] = how;
  const auto own = published.narrow.find(t.block->index);
  const bool acquires = order == Order::kAcquire || order == Order::kAcquireRelease;
  Fenced& seen = more(t).seen;
  if (own != published.narrow.end()) {
    if (acquires) take_in(t, own->second);
    join(seen.narrow, own->second);
    join(seen.wide, own->second);
  }
  if (is_wide(scope)) {
    if (acquires) take_in(t, published.wide);
    join(seen.wide, published.wide);
  }
}

void fence(Thread& t, Order order, Scope scope) {
  ThreadMore& own = more(t);
  if (order != Order::kRelease) {
    take_in(t, own.seen.narrow);
    own.seen.narrow.clear();
    if (is_wide(scope)) {
      take_in(t, own.seen.wide);
      own.seen.wide.clear();
    }
  }
  if (order != Order::kAcquire) {
    own.fenced.narrow = known(t);
    if (is_wide(scope)) own.fenced.wide = own.fenced.narrow;
    tick(t);
  }
}

// Asynchronous copies by cp.async are of the generic proxy; nothing here is of another.
void fence_proxy(Thread&, u32) {}

void arrive_at_barrier(Machine& m, Block& block, u32 index) {
  Thread& t = block.thread[index];
  if (t.barrier < 0 || t.barrier >= 16) {
    raise(m, t, FaultKind::kBarrier, "barrier " + std::to_string(t.barrier) + ": there are barriers 0 to 15");
  }
  Barrier& barrier = block.barriers[static_cast<size_t>(t.barrier)];
  if (t.barrier_count % 32 != 0) {
    raise(m, t, FaultKind::kBarrier, "a count of " + std::to_string(t.barrier_count) + " threads: no multiple of 32");
  }
  const u32 expected = t.barrier_count != 0 ? t.barrier_count : block.threads;
  if (barrier.arrived == 0) {
    barrier.expected = expected;
    barrier.clock.assign(2 * block.threads, 0);
  } else if (barrier.expected != expected) {
    raise(m, t, FaultKind::kBarrier,
          "barrier " + std::to_string(t.barrier) + " is joined for " + std::to_string(expected) +
              " threads, while others wait there for " + std::to_string(barrier.expected));
  }
  join(barrier.clock, block.more[index].clock);
  join(barrier.others, block.more[index].others);
  tick(t);
  ++barrier.arrived;
  barrier.trues += t.barrier_value;
  if (t.barrier_arrive_only) {
    t.state = State::kReady;
  } else {
    barrier.waiting.push_back(index);
  }
  if (barrier.arrived > barrier.expected) {
    raise(m, t, FaultKind::kBarrier, "more threads than barrier " + std::to_string(t.barrier) + " expects");
  }
}

bool meet_at_barriers(Machine& m, Block& block) {
  bool met = false;
  for (Barrier& barrier : block.barriers) {
    if (barrier.arrived == 0 || barrier.arrived < barrier.expected) continue;
    for (const u32 index : barrier.waiting) {
      Thread& t = block.thread[index];
      if (t.barrier_aligned) {
        const u32 first = index / kLanes * kLanes;
        for (u32 other = first; other < first + block.warp[index / kLanes].count; ++other) {
          const Thread& lane = block.thread[other];
          if (lane.state == State::kDone) continue;
          if (lane.state != State::kBarrier || lane.at != t.at) {
            raise(m, t, FaultKind::kBarrier,
                  "an aligned barrier that not all lanes of the warp have come to together (lane " +
                      std::to_string(lane.lane) + " has not)");
          }
        }
      }
    }
    for (const u32 index : barrier.waiting) {
      Thread& t = block.thread[index];
      join(block.more[index].clock, barrier.clock);
      join(block.more[index].others, barrier.others);
      if (t.barrier_reduce != 0 && t.barrier_result >= 0) {
        const u32 result = t.barrier_reduce == 1 ? barrier.trues
                           : t.barrier_reduce == 2 ? barrier.trues == barrier.arrived : barrier.trues != 0;
        *reinterpret_cast<u32*>(t.registers + t.barrier_result) = result;
      }
      t.state = State::kReady;
    }
    barrier.arrived = barrier.trues = 0;
    barrier.waiting.clear();
    barrier.others.clear();
    ++m.progress;
    ++m.barriers_met;
    met = true;
  }
  return met;
}

// ---- mbarrier

namespace {

struct Found {
  Mbarrier& barrier;
  Range range;
};

Found mbarrier_at(Thread& t, Space space, u64 address) {
  const Range range = find(t, space, address, 8, true);
  auto& all = range.space == Space::kShared ? t.block->mbarriers : t.machine->mbarriers;
  const auto found = all.find(range.address);
  if (found == all.end()) {
    raise(*t.machine, t, FaultKind::kMbarrier, "no mbarrier has been initialised here", range.space, range.address, 8);
  }
  // An operation on it is strong; that it follows its initialisation must be ordered by something else.
  if (range.shadow != nullptr) {
    watch(*t.machine, t, range, 8, false, Strength::kBlock, t.index, more(t).clock[t.index], t.at);
  }
  return {found->second, range};
}

void complete_phase(Machine& m, Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.transactions != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.completed = std::move(barrier.gathering);
  barrier.gathering.clear();
  ++m.progress;
}

}  // namespace

void keep_off_mbarriers(Thread& t, const Range& range, u32 bytes) {
  if (range.space != Space::kShared || t.block->mbarriers.empty()) return;
  for (u64 at = range.address & ~u64{7}; at < range.address + bytes; at += 8) {
    if (t.block->mbarriers.count(at) != 0) {
      raise(*t.machine, t, FaultKind::kMbarrier, "an ordinary access to an mbarrier", range.space, range.address,
            bytes);
    }
  }
}

void mbarrier_init(Thread& t, Space space, u64 address, u32 count) {
  const Range range = find(t, space, address, 8, true);
  if (count == 0 || count >= 1u << 20) {
    raise(*t.machine, t, FaultKind::kMbarrier,
          "a count of " + std::to_string(count) + " arrivals: 1 to 2^20 - 1 are allowed", range.space, address, 8);
  }
  if (range.shadow != nullptr) {
    watch(*t.machine, t, range, 8, true, Strength::kWeak, t.index, more(t).clock[t.index], t.at);
  }
  auto& all = range.space == Space::kShared ? t.block->mbarriers : t.machine->mbarriers;
  if (all.count(range.address) != 0) {
    raise(*t.machine, t, FaultKind::kMbarrier,
          "an mbarrier that is in use is initialised again without being invalidated", range.space, address, 8);
  }
  Mbarrier barrier;
  barrier.expected = barrier.pending = count;
  all[range.address] = barrier;
}

void mbarrier_inval(Thread& t, Space space, u64 address) {
  const Found found = mbarrier_at(t, space, address);
  if (found.range.shadow != nullptr) {
    watch(*t.machine, t, found.range, 8, true, Strength::kWeak, t.index, more(t).clock[t.index], t.at);
  }
  (found.range.space == Space::kShared ? t.block->mbarriers : t.machine->mbarriers).erase(found.range.address);
}

u64 mbarrier_arrive(Thread& t, Space space, u64 address, u32 count, bool drop, bool expect, u32 bytes,
                    bool stays) {
  const Found found = mbarrier_at(t, space, address);
  Mbarrier& barrier = found.barrier;
  const u64 token = static_cast<u64>(barrier.phase) << 32 | barrier.pending;
  if (expect) barrier.transactions += bytes;
  if (count == 0 || count > barrier.pending) {
    raise(*t.machine, t, FaultKind::kMbarrier,
          std::to_string(count) + " arrivals, while the phase waits for " + std::to_string(barrier.pending),
          found.range.space, found.range.address, 8);
  }
  join(barrier.gathering, known(t));
  tick(t);
  barrier.pending -= count;
  if (stays && barrier.pending == 0 && barrier.transactions == 0) {
    raise(*t.machine, t, FaultKind::kMbarrier, "a .noComplete arrival that completes the phase", found.range.space,
          found.range.address, 8);
  }
  if (drop) {
    if (barrier.expected <= count) {
      raise(*t.machine, t, FaultKind::kMbarrier, "every participant has dropped out", found.range.space,
            found.range.address, 8);
    }
    barrier.expected -= count;
  }
  complete_phase(*t.machine, barrier);
  return token;
}

void mbarrier_expect(Thread& t, Space space, u64 address, u32 bytes) {
  mbarrier_at(t, space, address).barrier.transactions += bytes;
}

void mbarrier_complete(Thread& t, Space space, u64 address, u32 bytes) {
  const Found found = mbarrier_at(t, space, address);
  found.barrier.transactions -= bytes;
  complete_phase(*t.machine, found.barrier);
}

bool mbarrier_test(Thread& t, Space space, u64 address, u64 token, bool by_parity) {
  const Found found = mbarrier_at(t, space, address);
  const Mbarrier& barrier = found.barrier;
  const bool done = by_parity ? (barrier.phase & 1) != (token & 1) : static_cast<u32>(token >> 32) != barrier.phase;
  if (done) {
    for (const auto& [block, clock] : barrier.completed) {
      if (block == t.block->index) {
        join(more(t).clock, clock);
      } else {
        join(more(t).others, block, clock);
      }
    }
  }
  return done;
}

void expect_copies(Thread& t, u64 address) { ++mbarrier_at(t, Space::kShared, address).barrier.pending; }

void arrive_for_copies(Thread& t, u64 address, const Clock& clock) {
  Mbarrier& barrier = mbarrier_at(t, Space::kShared, address).barrier;
  if (barrier.pending == 0) {
    raise(*t.machine, t, FaultKind::kMbarrier, "an arrival of asynchronous copies that the phase does not wait for",
          Space::kShared, address, 8);
  }
  join(barrier.gathering, t.block->index, clock);
  --barrier.pending;
  complete_phase(*t.machine, barrier);
}

}  // namespace fagen::emulate
