// Runs a grid: blocks, warps, lanes, in an order drawn from a seed; and the functions that Python calls.
#include "machine.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <numeric>

namespace fagen::emulate {

Where place_of(const Machine&, const Thread& t) {
  Where where;
  where.known = true;
  where.instruction = t.at;
  std::copy(t.ctaid, t.ctaid + 3, where.block);
  std::copy(t.tid, t.tid + 3, where.thread);
  return where;
}

void raise(Machine& m, const Thread& t, FaultKind kind, const std::string& what, Space space, u64 address, u32 bytes) {
  throw Fault{kind, what, place_of(m, t), {}, space, address, bytes};
}

namespace {

constexpr s32 kBudget = 64;         // backward branches of a spin in one turn
constexpr s32 kFuel = 1 << 22;      // other backward branches between two looks at the time
// Rounds without progress that are a deadlock: with registers of those who wait as they were before, or whatever they
// are (a thread may count how often it has tried).
constexpr u32 kStuckRounds = 200, kPatientRounds = 20000;
constexpr u32 kRegisters = 65536;   // of a block
constexpr u64 kMostBlocks = 288;    // at a time, where blocks wait for each other

void trap(Thread& t) { raise(*t.machine, t, FaultKind::kTrap, "the kernel trapped"); }

// A thread has run long without giving way, or all have.
void check_time(Machine& m, const Thread& t) {
  if (m.seconds > 0 && std::chrono::duration<double>(std::chrono::steady_clock::now() - m.start).count() > m.seconds) {
    raise(m, t, FaultKind::kEndless, "not at an end after " + std::to_string(static_cast<s64>(m.seconds)) + " seconds");
  }
}
void tired(Thread& t) {
  t.fuel = kFuel;
  check_time(*t.machine, t);
}

void program_fault(Thread& t, const char* what) { raise(*t.machine, t, FaultKind::kProgram, what); }

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


// Who waits where, a line a place.
[[noreturn]] void deadlock(Machine& m) {
  std::map<std::pair<s32, u8>, std::vector<std::pair<u32, u32>>> places;
  const Thread* first = nullptr;
  bool barrier = false, exited = false;
  FaultKind kind = FaultKind::kDeadlock;
  std::string more;
  for (const auto& block : m.blocks) {
    exited |= block->live < block->threads;
    for (const auto& [address, gate] : block->mbarriers) {
      if (gate.pending != 0 || gate.transactions <= 0) continue;
      kind = FaultKind::kMbarrier;
      more += "; the mbarrier at " + std::to_string(address) + " of block " + std::to_string(block->index) +
              " expects " + std::to_string(gate.transactions) + " bytes that nothing brings";
    }
    for (const Thread& t : block->thread) {
      if (t.state == State::kDone) continue;
      if (first == nullptr || (kind != FaultKind::kLimits && t.state != State::kWaiting && first->state == State::kWaiting)) first = &t;
      barrier |= t.state == State::kBarrier;
      if (block->more[t.index].wants_registers && kind != FaultKind::kLimits) {
        kind = FaultKind::kLimits;
        first = &t;
        more += "; setmaxnreg over budget: " + std::to_string(block->free_registers / s64{block->threads}) +
                " registers a thread are left";
      }
      places[{t.at, static_cast<u8>(t.state)}].push_back({block->index, t.index});
    }
  }
  std::string what = "no thread can go on";
  for (const auto& [place, who] : places) {
    what += "; " + std::to_string(who.size()) + (who.size() == 1 ? " thread" : " threads") + " (block " +
            std::to_string(who[0].first) + " thread " + std::to_string(who[0].second) +
            (who.size() > 1 ? " and on" : "") + ") ";
    switch (static_cast<State>(place.second)) {
      case State::kBarrier: what += "at a barrier"; break;
      case State::kCollective: what += "for other lanes"; break;
      default: what += "in a loop that waits"; break;
    }
    if (place.first >= 0) {
      const Instruction& at = m.program->instructions[place.first];
      what += ", line " + std::to_string(at.line) + " `" + at.text + "`";
    }
  }
  if (barrier && exited) what += "; some threads of the block have exited, which does not count as arriving";
  throw Fault{kind, what + more, place_of(m, *first), {}, Space::kGeneric, 0, 0};
}

// A number that tells whether those who spin have come any further.
u64 waiting_registers(const Machine& m) {
  u64 hash = 0;  // a sum over threads: blocks are in another order each round
  for (const auto& block : m.blocks) {
    for (const Thread& t : block->thread) {
      if (t.state != State::kWaiting) continue;
      u64 own = 0xcbf29ce484222325ull + static_cast<u64>(t.next);
      for (u32 n = 0; n < m.kernel->register_bytes; ++n) {
        own = (own ^ static_cast<u8>(t.registers[n])) * 0x100000001b3ull;
      }
      hash += own * (2 * t.index + 1);
    }
  }
  return hash;
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

}  // namespace

u64 special(Thread& t, u32 which) {
  Machine& m = *t.machine;
  switch (which) {
    case 0: return static_cast<u32>(m.ticks += 16);
    case 1: return (m.ticks += 16) >> 32;
    case 2: return m.ticks += 16;
    case 3: return m.ticks += 32;
    case 4: return static_cast<u32>(m.ticks += 32);
    case 5: return (m.ticks += 32) >> 32;
    case 6: return t.block->index % 16;
    case 7: return 16;
    case 8: return 1;
    case 9: return m.dynamic_shared;
    case 10: return m.shared_bytes;
    default: return 0;
  }
}

namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return out + "\"";
}

std::string list(const u32* three) {
  return "[" + std::to_string(three[0]) + ", " + std::to_string(three[1]) + ", " + std::to_string(three[2]) + "]";
}

std::string json(const Where& where) {
  if (!where.known) return "null";
  return "{\"instruction\": " + std::to_string(where.instruction) + ", \"block\": " + list(where.block) +
         ", \"thread\": " + list(where.thread) + "}";
}

std::string json(const Fault& fault) {
  return "{\"kind\": " + std::to_string(static_cast<s32>(fault.kind)) + ", \"what\": " + quoted(fault.what) +
         ", \"where\": " + json(fault.where) + ", \"other\": " + json(fault.other) +
         ", \"space\": " + std::to_string(static_cast<u32>(fault.space)) + ", \"address\": " +
         std::to_string(fault.address) + ", \"bytes\": " + std::to_string(fault.bytes) + "}";
}

}  // namespace

struct BufferArgument {
  u64 address, bytes;
  s32 writable;
  const char* name;
};

struct LaunchArguments {
  const Program* program;
  s32 kernel;
  u32 grid[3], block[3], cluster[3];
  u32 registers;
  u32 dynamic_shared;
  const char* param;
  s32 buffer_count;
  const BufferArgument* buffers;
  s32 completions;
  s32 checks;
  double seconds;
  u64 seed;
  u64* visits;     // kernel.block_count of them, added to
  u64* conflicts;  // program.instruction_count of them, added to; nullptr: not counted
};

// A JSON text of what happened, to be given back to fagen_free.
extern "C" __attribute__((visibility("default"))) char* fagen_launch(const LaunchArguments* a) {
  std::string report;
  Machine m{};
  m.program = a->program;
  m.kernel = a->program->kernels + a->kernel;
  m.calls = Calls{load, store, atomic, fence, fence_proxy, fence_mbarrier_init, copy_async, copy_commit, copy_wait, copy_arrive,
                  mbarrier_init, mbarrier_inval, mbarrier_arrive, mbarrier_expect, mbarrier_complete, mbarrier_test,
                  special, trap, program_fault, print, assert_failed, tired, bulk_copy, bulk_commit, bulk_wait,
                  wgmma_wait, touched, set_registers, cluster_arrive, cluster_wait,
                  map_shared, rank_of};
  std::copy(a->grid, a->grid + 3, m.grid);
  std::copy(a->block, a->block + 3, m.block_size);
  std::copy(a->cluster, a->cluster + 3, m.cluster);
  m.registers = a->registers;
  m.dynamic_shared = a->dynamic_shared;
  m.shared_bytes = m.kernel->shared_bytes + a->dynamic_shared;
  m.param = a->param;
  m.completions = static_cast<Completions>(a->completions);
  m.checks = a->checks != 0;
  m.random.seed(a->seed);
  m.seconds = a->seconds;
  m.start = std::chrono::steady_clock::now();
  m.visits.assign(m.kernel->block_count + 1, 0);
  if (a->conflicts != nullptr) m.conflicts.assign(static_cast<size_t>(m.program->instruction_count) + 1, 0);
  const u64 grain = static_cast<u64>(a->program->store_bytes_global);
  const auto add = [&](u64 address, u64 bytes, bool writable, const char* name) {
    Buffer buffer{address, address + bytes, writable, name, {}};
    buffer.shadow.grain = grain;
    if (writable && m.checks) buffer.shadow.cells.resize((bytes + 16) / grain + 16);
    m.buffers.push_back(std::move(buffer));
  };
  for (s32 n = 0; n < a->buffer_count; ++n) {
    add(a->buffers[n].address, a->buffers[n].bytes, a->buffers[n].writable != 0, a->buffers[n].name);
  }
  for (s32 n = 0; n < a->program->variable_count; ++n) {
    const Variable& variable = a->program->variables[n];
    add(reinterpret_cast<u64>(variable.address), variable.bytes, !variable.constant, variable.name);
    if (variable.initial != nullptr) {
      std::memcpy(variable.address, variable.initial, variable.bytes);
    } else {
      std::memset(variable.address, 0, variable.bytes);
    }
  }
  for (s32 n = 0; n < a->program->pointer_count; ++n) {
    const Pointer& pointer = a->program->pointers[n];
    std::memcpy(static_cast<u8*>(a->program->variables[pointer.variable].address) + pointer.offset, &pointer.value, 8);
  }
  std::sort(m.buffers.begin(), m.buffers.end(), [](const Buffer& x, const Buffer& y) { return x.begin < y.begin; });
  try {
    run_grid(m);
    report = "{\"barriers\": " + std::to_string(m.barriers_met) + ", \"collectives\": " +
             std::to_string(m.collectives_met) + "}";
  } catch (const Fault& fault) {
    report = "{\"fault\": " + json(fault) + "}";
  } catch (const std::exception& error) {
    report = "{\"error\": " + quoted(error.what()) + "}";
  }
  for (u32 n = 0; n < m.kernel->block_count; ++n) a->visits[n] += m.visits[n];
  for (s32 n = 0; a->conflicts != nullptr && n < m.program->instruction_count; ++n) {
    a->conflicts[n] += m.conflicts[static_cast<size_t>(n)];
  }
  char* out = static_cast<char*>(std::malloc(report.size() + 1));
  std::memcpy(out, report.c_str(), report.size() + 1);
  return out;
}

extern "C" __attribute__((visibility("default"))) void fagen_free(char* text) { std::free(text); }

}  // namespace fagen::emulate
