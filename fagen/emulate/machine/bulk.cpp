// cp.async.bulk and cp.reduce.async.bulk: copies of the asynchronous proxy, plain and by tensor maps. One is taken apart
// into pieces when it is issued, and all its accesses are recorded then; what it moves lands later. Source: PTX ISA,
// Data Movement and Conversion Instructions: Bulk Copy; Tensor.
#include <algorithm>

#include "box.h"

namespace fagen::emulate {
namespace {

// Of a thread's bulk groups: the agent of what they read from shared memory; the next is that of what they write.
u32 agent_of(Thread& t) {
  ThreadMore& own = more(t);
  if (own.bulk_agent == 0) {
    own.bulk_agent = t.block->agents;
    t.block->agents += 2;
  }
  return own.bulk_agent;
}

struct Epoch {  // as what an access is recorded
  const Block* block;
  u32 agent, clock;
};

void note(Thread& t, const Range& range, u64 bytes, bool write, const Epoch& epoch) {
  if (range.space == Space::kShared) keep_off_mbarriers(t, range, static_cast<u32>(bytes));
  if (range.shadow == nullptr) return;
  watch(*t.machine, t, range, static_cast<u32>(bytes), write, Strength::kWeak, epoch.agent, epoch.clock, t.at,
        epoch.block);
}

// The blocks of the cluster that a copy goes to: that of the address alone, or those of the mask.
std::vector<Block*> destinations(Thread& t, const BulkCopy& copy, Block* own) {
  if (!copy.multicast) return {own};
  std::vector<Block*> found;
  const auto& blocks = t.block->cluster->blocks;
  if ((copy.mask & 0xffffu) >> blocks.size() != 0 || (copy.mask & 0xffffu) == 0) {
    raise(*t.machine, t, FaultKind::kProgram,
          "a multicast to blocks that the cluster has not: mask " + std::to_string(copy.mask) + ", " +
              std::to_string(blocks.size()) + " blocks");
  }
  for (size_t n = 0; n < blocks.size(); ++n) {
    if (copy.mask >> n & 1) found.push_back(blocks[n]);
  }
  return found;
}

Range in_block(Thread& t, Block* block, u64 address, u64 bytes, u32 align, bool write) {
  return find_all(t, Space::kShared, address | u64{block->rank + 1} << 24, bytes, align, write);
}

void sizes_fit(Thread& t, const BulkCopy& copy) {
  if (copy.bytes % 16 == 0) return;
  raise(*t.machine, t, FaultKind::kMisaligned,
        "a bulk copy of " + std::to_string(copy.bytes) + " bytes, no multiple of 16", copy.to_space, copy.to, 16);
}

// Into shared memory, completing on an mbarrier of the block that the bytes go to.
void into_shared(Thread& t, const BulkCopy& copy, Bulk& bulk) {
  Machine& m = *t.machine;
  const Range first = find_all(t, copy.to_space, copy.to, 16, 16, true);
  const u64 gate = find_all(t, Space::kShared, copy.mbarrier, 8, 8, true).address;
  std::vector<Run> runs;
  u8 swizzle = 0;
  u64 bytes = copy.bytes;
  bool from_shared = false;
  if (copy.rank != 0) {
    const TensorMap map = map_at(t, copy.from_space, copy.from);
    runs = runs_of(map, copy.at);
    bytes = check_box(t, map, first.address, runs, copy.rank);
    swizzle = map.swizzle;
  } else {
    sizes_fit(t, copy);
    if (bytes == 0) return;
    const Range from = find_all(t, copy.from_space, copy.from, bytes, 16, false);
    from_shared = from.space == Space::kShared;
    runs.push_back({true, reinterpret_cast<u64>(from.data), 0, static_cast<u32>(bytes)});
  }
  bool read = false;
  for (Block* block : destinations(t, copy, first.owner)) {
    Mbarrier& barrier = mbarrier_for_bulk(t, *block, gate);
    const Epoch epoch{block, barrier.agent, barrier.phase + 1};
    if (!read) {  // once, however many it goes to
      if (from_shared) {
        note(t, find_all(t, copy.from_space, copy.from, bytes, 16, false), bytes, false, epoch);
      } else {
        for (const Run& run : runs) {
          if (!run.inside) continue;
          const Range range = find_all(t, Space::kGlobal, run.global, run.bytes, 1, false);
          note(t, range, run.bytes, false, epoch);
        }
      }
      read = true;
    }
    const Range to = in_block(t, block, first.address, bytes, 16, true);
    note(t, to, bytes, true, epoch);
    lay(bulk.pieces, runs, first.address, to.data, swizzle, true);
    ++barrier.flying;
    barrier.still += static_cast<s64>(bytes);
    check_expected(t, *block, gate);
    bulk.told.push_back({block, gate, static_cast<u32>(bytes)});
  }
  m.bulk.push_back(std::move(bulk));
}

// From shared into global memory, by the thread's open bulk group.
void into_global(Thread& t, const BulkCopy& copy, Bulk& bulk) {
  const u32 agent = agent_of(t);
  ThreadMore& own = more(t);
  bulk.group = own.bulk_committed + 1;
  const Epoch reads{t.block, agent, bulk.group}, writes{t.block, agent + 1, bulk.group};
  std::vector<Run> runs;
  if (copy.rank != 0) {
    const TensorMap map = map_at(t, copy.to_space, copy.to);
    runs = runs_of(map, copy.at);
    const u64 shared = find_all(t, copy.from_space, copy.from, 16, 16, false).address;
    const u64 bytes = check_box(t, map, shared, runs, copy.rank);
    const Range from = find_all(t, copy.from_space, copy.from, bytes, 16, false);
    note(t, from, bytes, false, reads);
    lay(bulk.pieces, runs, from.address, from.data, map.swizzle, false);
  } else {
    sizes_fit(t, copy);
    if (copy.bytes == 0) return;
    const Range from = find_all(t, copy.from_space, copy.from, copy.bytes, 16, false);
    note(t, from, copy.bytes, false, reads);
    runs.push_back({true, copy.to, 0, static_cast<u32>(copy.bytes)});
    find_all(t, copy.to_space, copy.to, copy.bytes, 16, true);
    lay(bulk.pieces, runs, from.address, from.data, 0, false);
  }
  for (const Run& run : runs) {
    if (!run.inside) continue;
    const Range range = find_all(t, Space::kGlobal, run.global, run.bytes, 1, true);
    // Reductions do not race with each other: only with what reads or stores.
    if (bulk.reduce != Reduce::kNone && range.shadow != nullptr) {
      watch(*t.machine, t, range, run.bytes, true, Strength::kGrid, writes.agent, writes.clock, t.at, writes.block);
    } else {
      note(t, range, run.bytes, true, writes);
    }
  }
  own.bulk_last = bulk.group;
  own.bulk_at = t.at;
  t.machine->bulk.push_back(std::move(bulk));
}

void take(Machine& m, Bulk& bulk) {
  if (bulk.read) return;
  bulk.read = true;
  u64 bytes = 0;
  for (const Piece& piece : bulk.pieces) bytes += piece.bytes;
  bulk.held.resize(bytes);
  bytes = 0;
  for (const Piece& piece : bulk.pieces) {
    if (piece.from != nullptr) {
      std::memcpy(bulk.held.data() + bytes, piece.from, piece.bytes);
    } else {
      std::memset(bulk.held.data() + bytes, 0, piece.bytes);
    }
    bytes += piece.bytes;
  }
  ++m.progress;
}

void land(Machine& m, Bulk& bulk) {
  take(m, bulk);
  u64 bytes = 0;
  for (const Piece& piece : bulk.pieces) {
    put(bulk, piece.to, bulk.held.data() + bytes, piece.bytes);
    bytes += piece.bytes;
  }
  for (const Told& told : bulk.told) complete_bytes(m, *told.block, told.address, told.bytes);
  ++m.progress;
}

// Carries out what `wanted` says of: 0 nothing, 1 what is read, 2 all.
template <typename F>
bool carry_out(Machine& m, F wanted) {
  bool any = false;
  std::vector<Bulk> flying = std::move(m.bulk);
  m.bulk.clear();
  for (Bulk& bulk : flying) {
    const u32 how = wanted(bulk);
    any |= how == 2 || (how == 1 && !bulk.read);
    if (how == 2) {
      land(m, bulk);
    } else {
      if (how == 1) take(m, bulk);
      m.bulk.push_back(std::move(bulk));
    }
  }
  return any;
}

}  // namespace

void bulk_copy(Thread& t, const BulkCopy& copy) {
  Machine& m = *t.machine;
  Bulk bulk;
  bulk.block = t.block;
  bulk.thread = t.index;
  bulk.instruction = t.at;
  bulk.reduce = static_cast<Reduce>(copy.reduce);
  bulk.type = copy.type;
  if (bulk.reduce != Reduce::kNone && copy.rank != 0) {
    constexpr Type kTypes[] = {Type::kB8,  Type::kB16, Type::kU32,  Type::kS32, Type::kU64, Type::kS64, Type::kF16,
                               Type::kF32, Type::kF64, Type::kBf16, Type::kF32, Type::kF32, Type::kF32};
    bulk.type = kTypes[map_at(t, copy.to_space, copy.to).type];
  }
  if (copy.completes) {
    into_shared(t, copy, bulk);
  } else {
    into_global(t, copy, bulk);
  }
  if (m.completions == Completions::kEarliest) land_bulk(m, true);
}

void bulk_commit(Thread& t) {
  agent_of(t);
  ++more(t).bulk_committed;
}

bool bulk_wait(Thread& t, u32 pending, bool read) {
  Machine& m = *t.machine;
  ThreadMore& own = more(t);
  if (own.bulk_committed <= pending) return true;
  const u32 agent = agent_of(t), done = own.bulk_committed - pending;
  carry_out(m, [&](const Bulk& bulk) -> u32 {
    if (bulk.block != t.block || bulk.thread != t.index || bulk.group == 0 || bulk.group > done) return 0;
    return read ? 1 : 2;
  });
  raise_to(own.clock, agent, done);
  own.bulk_read = std::max(own.bulk_read, done);
  if (!read) raise_to(own.clock, agent + 1, done);
  return true;
}

bool land_bulk(Machine& m, bool all) {
  if (m.bulk.empty()) return false;
  return carry_out(m, [&](const Bulk&) -> u32 { return all ? 2 : static_cast<u32>(m.random() % 3); });
}

void leave(Machine& m, Block& block) {
  for (const Bulk& bulk : m.bulk) {
    if (std::none_of(bulk.told.begin(), bulk.told.end(), [&](const Told& told) { return told.block == &block; })) {
      continue;
    }
    Thread& t = bulk.block->thread[bulk.thread];
    t.at = bulk.instruction;
    raise(m, t, FaultKind::kRace, "the block ends while a bulk copy may still write its shared memory");
  }
  for (u32 n = 0; n < block.threads; ++n) {
    if (block.more[n].bulk_last <= block.more[n].bulk_read) continue;
    block.thread[n].at = block.more[n].bulk_at;
    raise(m, block.thread[n], FaultKind::kRace, "the block ends while a bulk copy may still read its shared memory");
  }
  for (const auto& [address, barrier] : block.mbarriers) {
    if (barrier.transactions >= 0) continue;
    Thread& t = block.thread[barrier.maker];
    raise(m, t, FaultKind::kMbarrier,
          "expect_tx: " + std::to_string(-barrier.transactions) + " bytes came that no phase expected", Space::kShared,
          address, 8);
  }
  carry_out(m, [&](const Bulk& bulk) -> u32 { return bulk.block == &block ? 2 : 0; });
}

}  // namespace fagen::emulate
