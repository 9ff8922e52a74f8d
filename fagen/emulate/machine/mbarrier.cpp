// mbarriers: arrivals, bytes that copies bring, phases and who waits for them. Source: PTX ISA, mbarrier.
#include "machine.h"

namespace fagen::emulate {
namespace {

struct Found {
  Mbarrier& barrier;
  Range range;
};

Found mbarrier_at(Thread& t, Space space, u64 address) {
  const Range range = find(t, space, address, 8, true);
  auto& all = range.space == Space::kShared ? range.owner->mbarriers : t.machine->mbarriers;
  const auto found = all.find(range.address);
  if (found == all.end()) {
    raise(*t.machine, t, FaultKind::kMbarrier, "no mbarrier has been initialised here", range.space, range.address, 8);
  }
  // An operation on it is strong; that it follows its initialisation must be ordered by something else.
  if (range.shadow != nullptr) {
    watch(*t.machine, t, range, 8, false, Strength::kCluster, t.index, more(t).clock[t.index], t.at);
  }
  return {found->second, range};
}

// 2^20 - 1 bytes are the most that a phase may expect, or be ahead of what it expects.
constexpr s64 kMostTransactions = (1 << 20) - 1;

void complete_phase(Machine& m, Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.transactions != 0) return;
  ++barrier.phase;
  barrier.flying = 0;
  barrier.still = 0;
  barrier.pending = barrier.expected;
  barrier.completed = std::move(barrier.gathering);
  barrier.gathering.clear();
  ++m.progress;
}

void expects(Thread& t, const Found& found, u32 bytes) {
  found.barrier.transactions += bytes;
  if (found.barrier.transactions > kMostTransactions) {
    raise(*t.machine, t, FaultKind::kMbarrier, "more than 2^20 - 1 bytes expected in a phase", Space::kShared,
          found.range.address, 8);
  }
}

// With the last arrival, the bytes that fly must be those that are expected: fewer would complete the phase too early,
// more never.
void too_early(Thread& t, const Found& found) {
  const Mbarrier& barrier = found.barrier;
  if (!t.machine->checks || barrier.pending != 0 || barrier.transactions >= barrier.still) return;
  raise(*t.machine, t, FaultKind::kMbarrier,
        "expect_tx: bulk copies bring " + std::to_string(barrier.still - barrier.transactions) +
            " bytes more than the phase expects",
        Space::kShared, found.range.address, 8);
}

}  // namespace

void keep_off_mbarriers(Thread& t, const Range& range, u32 bytes) {
  if (range.space != Space::kShared || range.owner->mbarriers.empty()) return;
  for (u64 at = range.address & ~u64{7}; at < range.address + bytes; at += 8) {
    if (range.owner->mbarriers.count(at) != 0) {
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
  auto& all = range.space == Space::kShared ? range.owner->mbarriers : t.machine->mbarriers;
  if (all.count(range.address) != 0) {
    raise(*t.machine, t, FaultKind::kMbarrier,
          "an mbarrier that is in use is initialised again without being invalidated", range.space, address, 8);
  }
  Mbarrier barrier;
  barrier.expected = barrier.pending = count;
  barrier.agent = range.owner != nullptr ? range.owner->agents++ : 0;
  barrier.maker = t.index;
  barrier.made = more(t).clock[t.index];
  all[range.address] = barrier;
}

void mbarrier_inval(Thread& t, Space space, u64 address) {
  const Found found = mbarrier_at(t, space, address);
  if (found.range.shadow != nullptr) {
    watch(*t.machine, t, found.range, 8, true, Strength::kWeak, t.index, more(t).clock[t.index], t.at);
  }
  (found.range.space == Space::kShared ? found.range.owner->mbarriers : t.machine->mbarriers).erase(found.range.address);
}

u64 mbarrier_arrive(Thread& t, Space space, u64 address, u32 count, bool drop, bool expect, u32 bytes,
                    bool stays) {
  const Found found = mbarrier_at(t, space, address);
  Mbarrier& barrier = found.barrier;
  const u64 token = static_cast<u64>(barrier.phase) << 32 | barrier.pending;
  if (expect) expects(t, found, bytes);
  if (count == 0 || count > barrier.pending) {
    raise(*t.machine, t, FaultKind::kMbarrier,
          std::to_string(count) + " arrivals, while the phase waits for " + std::to_string(barrier.pending),
          found.range.space, found.range.address, 8);
  }
  join(barrier.gathering, known(t));
  tick(t);
  barrier.pending -= count;
  too_early(t, found);
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
  expects(t, mbarrier_at(t, space, address), bytes);
}

void mbarrier_complete(Thread& t, Space space, u64 address, u32 bytes) {
  const Found found = mbarrier_at(t, space, address);
  found.barrier.transactions -= bytes;
  too_early(t, found);
  complete_phase(*t.machine, found.barrier);
}

Mbarrier& mbarrier_for_bulk(Thread& t, Block& block, u64 address) {
  Machine& m = *t.machine;
  const Found found = mbarrier_at(t, Space::kShared, address | u64{block.rank + 1} << 24);
  const Mbarrier& barrier = found.barrier;
  if (!barrier.fenced) {
    const u32 agent = 2 * block.threads + barrier.maker;
    const auto& others = more(t).others;
    const auto other = others.find(block.index);
    const u32 passed = &block == t.block ? at(more(t).clock, agent) : other == others.end() ? 0 : at(other->second, agent);
    if (m.checks && passed < barrier.made) {
      raise(m, t, FaultKind::kProxy,
            "a bulk copy on an mbarrier whose initialisation no fence.mbarrier_init or fence.proxy.async follows",
            Space::kShared, address, 8);
    }
  }
  return found.barrier;
}

void check_expected(Thread& t, Block& block, u64 address) {
  too_early(t, mbarrier_at(t, Space::kShared, address | u64{block.rank + 1} << 24));
}

void complete_bytes(Machine& m, Block& block, u64 address, u32 bytes) {
  const auto found = block.mbarriers.find(address);
  if (found == block.mbarriers.end()) {
    throw Fault{FaultKind::kMbarrier, "an mbarrier was invalidated before bulk copies had completed on it", {}, {},
                Space::kShared, address, 8};
  }
  Mbarrier& barrier = found->second;
  barrier.transactions -= bytes;
  barrier.still -= bytes;
  if (barrier.flying != 0) --barrier.flying;
  Clock& clock = barrier.gathering[block.index];
  raise_to(clock, barrier.agent, barrier.phase + 1);
  complete_phase(m, barrier);
}

namespace {

// A thread that comes back for the phase that it has waited for already, while the next one is under way: it has not
// turned its parity, or has the wrong barrier.
void waited_twice(Thread& t, const Found& found) {
  const Mbarrier& barrier = found.barrier;
  const u64 key = found.range.address | u64{found.range.owner != nullptr ? found.range.owner->index + 1 : 0} << 32;
  auto& waited = more(t).waited;
  const auto [place, fresh] = waited.try_emplace(key, std::pair(barrier.agent, barrier.phase));
  const bool armed = barrier.pending != barrier.expected || barrier.transactions != 0 || barrier.flying != 0;
  if (!fresh && place->second == std::pair(barrier.agent, barrier.phase) && armed) {
    raise(*t.machine, t, FaultKind::kMbarrier, "a phase is waited for twice, while the next is under way",
          found.range.space, found.range.address, 8);
  }
  place->second = {barrier.agent, barrier.phase};
}

}  // namespace

bool mbarrier_test(Thread& t, Space space, u64 address, u64 token, bool by_parity) {
  const Found found = mbarrier_at(t, space, address);
  const Mbarrier& barrier = found.barrier;
  const bool done = by_parity ? (barrier.phase & 1) != (token & 1) : static_cast<u32>(token >> 32) != barrier.phase;
  if (!done) {
    t.budget = 0;  // there is nothing to be had by trying again at once
    return false;
  }
  if (t.machine->checks) {
    waited_twice(t, found);
    take_in(t, barrier.completed);
  }
  return true;
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
