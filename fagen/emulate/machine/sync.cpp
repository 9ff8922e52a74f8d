// What orders threads: barriers, fences, releases and acquires.
#include <algorithm>

#include "machine.h"

namespace fagen::emulate {

void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  u32* const to = into.data();
  const u32* const other = from.data();
  const size_t count = from.size();
  for (size_t i = 0; i < count; ++i) to[i] = to[i] > other[i] ? to[i] : other[i];
}

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

namespace {

// Whether a scope holds threads of other blocks. That of a cluster counts as wide where there are clusters.
bool reaches(const Thread& t, Scope scope) {
  return is_wide(scope) || (scope == Scope::kCluster && t.block->cluster->blocks.size() > 1);
}

std::unordered_map<u64, Published>& places(Thread& t, const Range& range) {
  return range.space == Space::kShared ? range.owner->published : t.machine->published;
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
  if (reaches(t, scope)) join(published.wide, release ? now : fenced.wide);
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
  if (reaches(t, scope)) {
    if (acquires) take_in(t, published.wide);
    join(seen.wide, published.wide);
  }
}

void fence(Thread& t, Order order, Scope scope) {
  ThreadMore& own = more(t);
  if (order != Order::kRelease) {
    take_in(t, own.seen.narrow);
    own.seen.narrow.clear();
    if (reaches(t, scope)) {
      take_in(t, own.seen.wide);
      own.seen.wide.clear();
    }
  }
  if (order != Order::kAcquire) {
    own.fenced.narrow = known(t);
    if (reaches(t, scope)) own.fenced.wide = own.fenced.narrow;
    tick(t);
  }
}

// What the thread knows of ordinary accesses may be seen by the asynchronous proxy from here on.
void fence_proxy(Thread& t, u32) {
  const u32 generic = 2 * t.block->threads;
  const auto pass = [generic](Clock& clock) {
    if (clock.size() < 2 * generic) clock.resize(2 * generic, 0);
    for (u32 n = 0; n < generic; ++n) clock[generic + n] = std::max(clock[generic + n], clock[n]);
  };
  pass(more(t).clock);
  for (auto& [block, clock] : more(t).others) pass(clock);
  tick(t);
}

// Of the mbarriers that the thread has initialised.
void fence_mbarrier_init(Thread& t) {
  for (auto& [address, barrier] : t.block->mbarriers) barrier.fenced |= barrier.maker == t.index;
  fence(t, Order::kRelease, Scope::kCluster);
}

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

}  // namespace fagen::emulate
