// cp.async.bulk and cp.reduce.async.bulk: copies of the asynchronous proxy, plain and by tensor maps. One is taken apart
// into pieces when it is issued, and all its accesses are recorded then; what it moves lands later. Source: PTX ISA,
// Data Movement and Conversion Instructions: Bulk Copy; Tensor.
#include <algorithm>

#include "machine.h"
#include "tensormap.h"

namespace fagen::emulate {
namespace {

ThreadMore& more(Thread& t) { return t.block->more[t.index]; }

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

TensorMap map_at(Thread& t, Space space, u64 address) {
  Machine& m = *t.machine;
  const Range range = find_all(t, space, address, kTensorMapBytes, 64, false);
  TensorMap map;
  std::memcpy(&map, range.data, sizeof(map));
  if (map.mark != kTensorMapMark || map.sum != sum_of(map)) {
    raise(m, t, FaultKind::kTensorMap, "no tensor map lies here (encode_tiled makes them)", space, address,
          kTensorMapBytes);
  }
  return map;
}

struct Run {  // of elements along the innermost dimension: global memory, unless it is outside of the tensor
  bool inside;
  u64 global;
  u64 offset;  // into the box
  u32 bytes;
};

// The box at the coordinates, as runs in the order of shared memory.
std::vector<Run> runs_of(const TensorMap& map, const s32* at) {
  const u32 element = map.element;
  u32 counts[kMostRank] = {1, 1, 1, 1, 1};
  u64 rows = 1;
  for (u32 n = 0; n < map.rank; ++n) {
    counts[n] = (map.box[n] + map.steps[n] - 1u) / map.steps[n];
    if (n != 0) rows *= counts[n];
  }
  // Along dimension 0 the box is inside from `first` to `end`.
  const s64 size = static_cast<s64>(map.last[0]) + 1, width = counts[0];
  const s64 first = std::clamp<s64>(-s64{at[0]}, 0, width), end = std::clamp<s64>(size - at[0], first, width);
  std::vector<Run> runs;
  for (u64 row = 0; row < rows; ++row) {
    u64 rest = row, global = map.address;
    bool inside = first < end;
    for (u32 n = 1; n < map.rank; ++n) {
      const s64 x = s64{at[n]} + static_cast<s64>(rest % counts[n] * map.steps[n]);
      rest /= counts[n];
      inside = inside && x >= 0 && x <= static_cast<s64>(map.last[n]);
      global += static_cast<u64>(x) * map.strides[n - 1];
    }
    const u64 offset = row * static_cast<u64>(width) * element;
    const auto add = [&](bool is_inside, s64 from, s64 to) {
      if (from == to) return;
      runs.push_back({is_inside, is_inside ? global + static_cast<u64>((s64{at[0]} + from) * element) : 0,
                      offset + static_cast<u64>(from) * element, static_cast<u32>((to - from) * element)});
    };
    if (inside) {
      add(false, 0, first);
      add(true, first, end);
      add(false, end, width);
    } else {
      add(false, 0, width);
    }
  }
  return runs;
}

// What shared memory must be for a tensor copy. Returns the bytes of the box.
u64 check_box(Thread& t, const TensorMap& map, u64 shared, const std::vector<Run>& runs, u32 rank) {
  Machine& m = *t.machine;
  if (map.rank != rank) {
    raise(m, t, FaultKind::kTensorMap,
          "a tensor map of " + std::to_string(map.rank) + " dimensions in an instruction for " + std::to_string(rank));
  }
  const u32 span = 16 * chunks_of(map.swizzle);
  if (map.swizzle != 0 && static_cast<u32>(map.box[0]) * map.element != span) {
    raise(m, t, FaultKind::kTensorMap,
          "a box of " + std::to_string(map.box[0] * map.element) + " bytes a row under a swizzle of " +
              std::to_string(span) + ": narrower ones are not built",
          Space::kShared, shared, span);
  }
  if (shared % 128 != 0) {
    raise(m, t, FaultKind::kTensorMap, "a box in shared memory that does not begin at a multiple of 128 bytes",
          Space::kShared, shared, 128);
  }
  return runs.back().offset + runs.back().bytes;
}

// Pieces between shared memory (at `address`, `data`) and the runs; `load` is into shared memory.
void lay(std::vector<Piece>& pieces, const std::vector<Run>& runs, u64 address, u8* data, u8 swizzle, bool load) {
  const u32 chunks = chunks_of(swizzle);
  for (const Run& run : runs) {
    if (!load && !run.inside) continue;  // nothing is written outside of the tensor
    u32 done = 0;
    while (done < run.bytes) {
      const u64 plain = address + run.offset + done;
      const u32 part = chunks == 1 ? run.bytes : std::min<u32>(16 - plain % 16, run.bytes - done);
      u8* const shared = data + (swizzled(plain, chunks) - address);
      u8* const global = run.inside ? reinterpret_cast<u8*>(run.global + done) : nullptr;
      pieces.push_back(load ? Piece{shared, global, part} : Piece{global, shared, part});
      done += part;
    }
  }
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

template <typename T>
T reduced(Reduce what, T old, T a) {
  switch (what) {
    case Reduce::kAdd: return static_cast<T>(static_cast<Unsigned<T>>(old) + static_cast<Unsigned<T>>(a));
    case Reduce::kMin: return a < old ? a : old;
    case Reduce::kMax: return a > old ? a : old;
    case Reduce::kInc: return old >= a ? T(0) : static_cast<T>(old + 1);
    case Reduce::kDec: return old == 0 || old > a ? a : static_cast<T>(old - 1);
    case Reduce::kAnd: return static_cast<T>(old & a);
    case Reduce::kOr: return static_cast<T>(old | a);
    case Reduce::kXor: return static_cast<T>(old ^ a);
    default: return a;
  }
}

template <typename T, typename F>
void each(u8* to, const u8* from, u32 bytes, F f) {
  for (u32 n = 0; n + sizeof(T) <= bytes; n += sizeof(T)) {
    T old, a;
    std::memcpy(&old, to + n, sizeof(T));
    std::memcpy(&a, from + n, sizeof(T));
    const T now = f(old, a);
    std::memcpy(to + n, &now, sizeof(T));
  }
}

template <typename H>
u16 half_reduced(Reduce what, u16 old, u16 a) {
  switch (what) {
    case Reduce::kMin: return h_min<H, false>(old, a);
    case Reduce::kMax: return h_max<H, false>(old, a);
    default: return h_add<H, false, false>(old, a);
  }
}

void put(const Bulk& bulk, u8* to, const u8* from, u32 bytes) {
  const Reduce what = bulk.reduce;
  if (what == Reduce::kNone) {
    std::memcpy(to, from, bytes);
    return;
  }
  switch (bulk.type) {
    case Type::kF32: each<float>(to, from, bytes, [](float x, float y) { return x + y; }); break;
    case Type::kF64: each<double>(to, from, bytes, [](double x, double y) { return x + y; }); break;
    case Type::kF16: each<u16>(to, from, bytes, [=](u16 x, u16 y) { return half_reduced<Half>(what, x, y); }); break;
    case Type::kBf16: each<u16>(to, from, bytes, [=](u16 x, u16 y) { return half_reduced<Bfloat>(what, x, y); }); break;
    case Type::kS32: each<s32>(to, from, bytes, [=](s32 x, s32 y) { return reduced(what, x, y); }); break;
    case Type::kS64: each<s64>(to, from, bytes, [=](s64 x, s64 y) { return reduced(what, x, y); }); break;
    case Type::kU64: case Type::kB64:
      each<u64>(to, from, bytes, [=](u64 x, u64 y) { return reduced(what, x, y); });
      break;
    default: each<u32>(to, from, bytes, [=](u32 x, u32 y) { return reduced(what, x, y); }); break;
  }
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
