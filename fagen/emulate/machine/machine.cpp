// Runs a grid: blocks, warps, lanes, in an order drawn from a seed.
#include "machine.h"

#include <time.h>

#include <algorithm>
#include <numeric>

namespace fagen::emulate {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

namespace {

constexpr s32 kBudget = 64;         // backward branches of a spin in one turn
constexpr s32 kFuel = 1 << 22;      // other backward branches between two looks at the time
// Rounds without progress that are a deadlock: with registers of those who wait as they were before, or whatever they
// are (a thread may count how often it has tried).
constexpr u32 kStuckRounds = 200, kPatientRounds = 20000;
constexpr u32 kRegisters = 65536;   // of a block
constexpr u64 kMostBlocks = 288;    // at a time, where blocks wait for each other

// A thread has run long without giving way, or all have.
void check_time(Machine& m, const Thread& t) {
  if (m.seconds > 0 && processor_seconds() - m.start > m.seconds) {
    raise(m, t, FaultKind::kEndless, "not at an end after " + std::to_string(static_cast<s64>(m.seconds)) + " seconds");
  }
}
std::unique_ptr<Block> make_block(Machine& m, u32 index, const std::shared_ptr<Cluster>& cluster, u32 rank) {
  auto made = std::make_unique<Block>();
  Block& block = *made;
  block.index = index;
  block.rank = rank;
  block.cluster = cluster;
  cluster->blocks.push_back(&block);
  block.coordinates[0] = index % m.grid[0];
  block.coordinates[1] = index / m.grid[0] % m.grid[1];
  block.coordinates[2] = index / m.grid[0] / m.grid[1];
  block.threads = m.block_size[0] * m.block_size[1] * m.block_size[2];
  block.warps = (block.threads + kLanes - 1) / kLanes;
  const Kernel& kernel = *m.kernel;
  const u64 stride = (kernel.register_bytes + 63) / 64 * 64 + 64, local = (kernel.local_bytes + 15) / 16 * 16;
  block.products.resize(block.warps);
  block.warpgroups.resize((block.warps + 3) / 4);
  block.agents = 4 * block.threads + static_cast<u32>(block.warpgroups.size());
  block.free_registers = s64{kRegisters} - s64{m.registers} * block.threads;
  // Not zeros, which hide a missing store.
  block.registers.assign(stride * block.threads, static_cast<char>(0xff));
  block.local.assign(local * block.threads + 16, static_cast<char>(0xff));
  block.shared.assign(m.shared_bytes, 0xff);
  block.shadow.grain = static_cast<u64>(m.program->store_bytes_shared);
  block.shadow.cells.resize(m.shared_bytes / block.shadow.grain + 16);
  block.thread.resize(block.threads);
  block.more.resize(block.threads);
  for (u32 n = 0; n < block.threads; ++n) {
    Thread& t = block.thread[n];
    t = Thread{};
    t.calls = &m.calls;
    t.machine = &m;
    t.block = &block;
    t.registers = block.registers.data() + n * stride;
    t.local = block.local.data() + n * local;
    t.param = m.param;
    t.visits = m.visits.data();
    for (int i = 0; i < 3; ++i) {
      t.ntid[i] = m.block_size[i];
      t.nctaid[i] = m.grid[i];
      t.ctaid[i] = block.coordinates[i];
      t.cluster_ctaid[i] = block.coordinates[i] % m.cluster[i];
      t.cluster_nctaid[i] = m.cluster[i];
    }
    t.cluster_rank = rank;
    t.tid[0] = n % m.block_size[0];
    t.tid[1] = n / m.block_size[0] % m.block_size[1];
    t.tid[2] = n / m.block_size[0] / m.block_size[1];
    t.index = n;
    t.lane = n % kLanes;
    t.warp = n / kLanes;
    t.at = -1;
    t.fuel = kFuel;
    t.state = State::kReady;
    std::memset(t.registers + kernel.noted_offset, 0, kernel.noted_count);
    block.more[n].clock.assign(2 * block.threads, 0);
    block.more[n].clock[n] = 1;
    block.more[n].registers = m.registers;
  }
  for (u32 w = 0; w < block.warps; ++w) {
    block.warp.push_back({block.thread.data() + w * kLanes, std::min<u32>(kLanes, block.threads - w * kLanes)});
  }
  block.live = block.threads;
  return made;
}

// Runs the instruction that the lanes of `mask` wait at, if all are there.
bool meet(Machine& m, Block& block, Warp& warp, u32 lane) {
  Thread& first = warp.lanes[lane];
  const Collective& op = *first.collective;
  if (!(first.mask >> lane & 1)) {
    raise(m, first, FaultKind::kCollective, "lane " + std::to_string(lane) + " is not in its own mask");
  }
  u32 taking_part = 0;
  for (u32 other = 0; other < kLanes; ++other) {
    if (!(first.mask >> other & 1)) continue;
    const bool gone = other >= warp.count || warp.lanes[other].state == State::kDone;
    if (gone) {
      if (op.aligned) {
        raise(m, first, FaultKind::kCollective,
              "lane " + std::to_string(other) + (other >= warp.count ? " does not exist" : " has exited") +
                  ", and all lanes of the warp must execute this together");
      }
      continue;  // what has exited is not waited for
    }
    const Thread& t = warp.lanes[other];
    if (t.state != State::kCollective) return false;
    if (t.collective != first.collective) {
      const Collective& its = *t.collective;
      const bool same = its.run == op.run && std::equal(its.detail, its.detail + 4, op.detail);
      if (op.aligned || its.aligned) {
        raise(m, first, FaultKind::kCollective,
              "lane " + std::to_string(other) +
                  " has come to another instruction, and all lanes must execute this together");
      }
      if (!same) return false;
    }
    if (t.mask != first.mask) return false;
    taking_part |= 1u << other;
  }
  if (op.orders && m.checks) {
    Clock all(2 * block.threads, 0);
    Clocks others;
    for (u32 other = 0; other < kLanes; ++other) {
      if (!(taking_part >> other & 1)) continue;
      const ThreadMore& its = block.more[warp.lanes[other].index];
      join(all, its.clock);
      join(others, its.others);
    }
    for (u32 other = 0; other < kLanes; ++other) {
      if (!(taking_part >> other & 1)) continue;
      Thread& t = warp.lanes[other];
      join(block.more[t.index].clock, all);
      join(block.more[t.index].others, others);
      tick(t);
    }
  }
  op.run(m, warp, taking_part, op);
  for (u32 other = 0; other < kLanes; ++other) {
    if (taking_part >> other & 1) warp.lanes[other].state = State::kReady;
  }
  ++m.progress;
  ++m.collectives_met;
  return true;
}

// A lane's turn; whether it may go on at once.
void turn(Machine& m, Block& block, Thread& t) {
  if (m.completions == Completions::kRandom && !block.more[t.index].groups.empty() && (m.random() & 3) == 0) {
    complete_some(t);
  }
  if (m.completions == Completions::kRandom && block.products[t.warp].carried < block.products[t.warp].issued && (m.random() & 63) == 0) {
    carry_out_some(m, block, t.warp);
  }
  t.state = State::kReady;
  t.budget = kBudget;
  m.kernel->step(t);
  if (t.state == State::kBarrier) {
    arrive_at_barrier(m, block, t.index);
  } else if (t.state == State::kDone) {
    complete_all(t);
    if (block.live == 1) leave(m, block);
    --block.live;
    ++m.progress;
  }
}

// Lets a warp run until none of its lanes can, or it has had enough for now.
void run_warp(Machine& m, Block& block, Warp& warp, u32 enough) {
  u32 waited = 0;  // lanes that have spun this turn
  for (u32 met = 0;;) {
    bool any = false;
    const u32 start = static_cast<u32>(m.random()) % warp.count;
    for (u32 n = 0; n < warp.count; ++n) {
      const u32 lane = (start + n) % warp.count;
      Thread& t = warp.lanes[lane];
      const bool spins = t.state == State::kWaiting;
      if (t.state != State::kReady && !(spins && !(waited >> lane & 1))) continue;
      if (spins) waited |= 1u << lane;
      turn(m, block, t);
      any = true;
    }
    for (u32 lane = 0; lane < warp.count; ++lane) {
      if (warp.lanes[lane].state == State::kCollective && meet(m, block, warp, lane)) {
        any = true;
        ++met;
      }
    }
    if (!any || met >= enough) return;
    if (meet_at_barriers(m, block)) return;
  }
}

// A block's memory stays until all of its cluster are done.
bool ended(const Block& block) {
  for (const Block* other : block.cluster->blocks) {
    if (other->live != 0) return false;
  }
  return true;
}

// The linear index of a cluster's block.
u32 in_cluster(const Machine& m, u32 cluster, u32 rank) {
  const u32 along[2] = {m.grid[0] / m.cluster[0], m.grid[1] / m.cluster[1]};
  const u32 x = cluster % along[0] * m.cluster[0] + rank % m.cluster[0];
  const u32 y = cluster / along[0] % along[1] * m.cluster[1] + rank / m.cluster[0] % m.cluster[1];
  const u32 z = cluster / along[0] / along[1] * m.cluster[2] + rank / m.cluster[0] / m.cluster[1];
  return x + m.grid[0] * (y + m.grid[1] * z);
}

}  // namespace

void tired(Thread& t) {
  t.fuel = kFuel;
  check_time(*t.machine, t);
}

void run_grid(Machine& m) {
  const u64 total = static_cast<u64>(m.grid[0]) * m.grid[1] * m.grid[2];
  u64 started = 0;
  u64 wanted = 2;  // blocks at a time, more when those that run wait for others
  u32 stuck = 0, same = 0;
  u64 waiting = 0;
  while (started < total || !m.blocks.empty()) {
    while (m.blocks.size() < wanted && started < total) {
      const u32 size = m.cluster[0] * m.cluster[1] * m.cluster[2];
      const auto cluster = std::make_shared<Cluster>();
      for (u32 rank = 0; rank < size; ++rank) {
        m.blocks.push_back(make_block(m, in_cluster(m, static_cast<u32>(started / size), rank), cluster, rank));
        ++started;
      }
    }
    const u64 before = m.progress;
    if (m.completions == Completions::kRandom) land_bulk(m, false);
    for (const Thread& t : m.blocks.front()->thread) {
      if (t.state == State::kDone) continue;
      check_time(m, t);
      break;
    }
    std::shuffle(m.blocks.begin(), m.blocks.end(), m.random);
    for (auto& each : m.blocks) {
      Block& block = *each;
      std::vector<u32> order(block.warps);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), m.random);
      ++m.switches;
      for (const u32 w : order) {
        run_warp(m, block, block.warp[w], 1 + static_cast<u32>(m.random() % 32));
        meet_at_barriers(m, block);
      }
    }
    for (const auto& block : m.blocks) {
      block->cluster->spent = ended(*block);
      if (block->cluster->spent && !m.conflicts.empty()) add_conflicts(m, *block);
    }
    m.blocks.erase(std::remove_if(m.blocks.begin(), m.blocks.end(), [](const auto& block) { return block->cluster->spent; }),
                   m.blocks.end());
    if (m.progress != before) {
      stuck = same = 0;
      continue;
    }
    bool landed = land_bulk(m, true);
    for (auto& block : m.blocks) {
      for (Thread& t : block->thread) landed |= t.state != State::kDone && complete_all(t);
    }
    if (landed) continue;
    if (started < total && m.blocks.size() < kMostBlocks) {
      wanted = std::min<u64>(2 * wanted, kMostBlocks);
      continue;
    }
    const u64 now = waiting_registers(m);
    same = now == waiting ? same + 1 : 0;
    waiting = now;
    if (same > kStuckRounds || ++stuck > kPatientRounds) deadlock(m);
  }
}

}  // namespace fagen::emulate
