// State spaces, bounds, alignment, and the shadow that finds accesses nothing orders.
#include <algorithm>

#include "machine.h"

namespace fagen::emulate {
namespace {

std::string named(u64 bytes) { return std::to_string(bytes) + (bytes == 1 ? " byte" : " bytes"); }

// Whether a thread knows of an access, as `agent` for other than the one that made it.
bool knows(Thread& t, const Access& access, u32 agent) {
  if (access.block == t.block->index) return at(more(t).clock, agent) >= access.clock;
  const auto& others = more(t).others;
  const auto found = others.find(access.block);
  return found != others.end() && at(found->second, agent) >= access.clock;
}
bool knows(Thread& t, const Access& access) { return knows(t, access, access.agent); }

// In words: what left an access behind.
std::string said(const Thread& t, const Access& access, bool wrote) {
  const u32 threads = t.block->threads, products = 4 * threads, others = products + (threads + 127) / 128;
  const std::string what = wrote ? "write" : "read";
  if (access.agent < threads) return "a " + what;
  return "the " + what + (access.agent >= products && access.agent < others ? " of a wgmma" : " of an asynchronous copy");
}

[[noreturn]] void conflict(Machine& m, Thread& t, const Range& range, u32 bytes, bool write, u32 agent,
                           s32 instruction, const Access& before, bool before_wrote) {
  const bool unfenced = before_wrote && before.agent < 2 * t.block->threads && knows(t, before);
  Fault fault{unfenced ? FaultKind::kProxy : FaultKind::kRace, "", place_of(m, t), {}, range.space, range.address, bytes};
  fault.where.instruction = instruction;
  fault.other.known = true;
  fault.other.instruction = before.instruction;
  const u32 index = before.thread;
  for (int i = 0; i < 3; ++i) {
    const u32 below_t = i == 0 ? 1 : i == 1 ? m.block_size[0] : m.block_size[0] * m.block_size[1];
    const u32 below_b = i == 0 ? 1 : i == 1 ? m.grid[0] : m.grid[0] * m.grid[1];
    fault.other.thread[i] = index / below_t % m.block_size[i];
    fault.other.block[i] = before.block / below_b % m.grid[i];
  }
  const Access now{t.block->index, agent, 0, instruction, t.index};
  fault.what = unfenced ? said(t, now, write) + " after an ordinary write, without a fence.proxy.async in between"
                        : std::string(write ? "a write" : "a read") + " and " + said(t, before, before_wrote) +
                              " that nothing orders";
  throw fault;
}

}  // namespace

namespace {

bool same_cluster(const Machine& m, u32 a, u32 b) {
  if (m.cluster[0] * m.cluster[1] * m.cluster[2] == 1) return a == b;
  const auto place = [&](u32 index) {
    const u32 x = index % m.grid[0] / m.cluster[0], y = index / m.grid[0] % m.grid[1] / m.cluster[1];
    return std::array<u32, 3>{x, y, index / m.grid[0] / m.grid[1] / m.cluster[2]};
  };
  return place(a) == place(b);
}

}  // namespace

Range find(Thread& t, Space space, u64 address, u32 bytes, bool write) {
  return find_all(t, space, address, bytes, bytes, write);
}

Range find_all(Thread& t, Space space, u64 address, u64 all_bytes, u32 align, bool write) {
  Machine& m = *t.machine;
  const u32 bytes = static_cast<u32>(all_bytes);
  if (space == Space::kGeneric) {
    const u64 window = address >> 56 << 56;
    if (window == kSharedWindow) return find_all(t, Space::kShared, address - kSharedWindow, bytes, align, write);
    if (window == kLocalWindow) return find_all(t, Space::kLocal, address - kLocalWindow, bytes, align, write);
    if (window == kParamWindow) return find_all(t, Space::kParam, address - kParamWindow, bytes, align, write);
    space = Space::kGlobal;
  }
  if (address % align != 0) {
    raise(m, t, FaultKind::kMisaligned,
          "an access of " + named(bytes) + " at an address that is no multiple of " + std::to_string(align), space,
          address, bytes);
  }
  switch (space) {
    case Space::kShared: {
      Block* owner = t.block;
      if (address >> 24 != 0) {  // of the cluster's: the block's rank, and one, in the highest bits
        const u64 rank = (address >> 24) - 1;
        const auto& blocks = t.block->cluster->blocks;
        if (rank >= blocks.size()) {
          raise(m, t, FaultKind::kOutOfBounds, "shared memory of a block that the cluster has not", space, address,
                bytes);
        }
        owner = blocks[rank];
        if (owner->live == 0) {
          raise(m, t, FaultKind::kOutOfBounds, "shared memory of a block that has ended", space, address, bytes);
        }
        address &= 0xffffff;
      }
      const u64 size = owner->shared.size();
      if (address < kSharedFirst || address + bytes > kSharedFirst + size) {
        raise(m, t, FaultKind::kOutOfBounds,
              address < kSharedFirst
                  ? "below the block's shared memory"
                  : named(address + bytes - kSharedFirst - size) + " beyond the block's " + named(size) +
                        " of shared memory",
              space, address, bytes);
      }
      const u64 offset = address - kSharedFirst;
      return {space, owner->shared.data() + offset, m.checks ? &owner->shadow : nullptr, offset, address, owner};
    }
    case Space::kLocal:
      if (address + bytes > m.kernel->local_bytes || address + bytes < address) {
        raise(m, t, FaultKind::kOutOfBounds, "beyond the thread's " + named(m.kernel->local_bytes) + " of local memory",
              space, address, bytes);
      }
      return {space, reinterpret_cast<u8*>(t.local) + address, nullptr, address, address, nullptr};
    case Space::kParam:
      if (write) raise(m, t, FaultKind::kReadOnly, "a store into the launch's parameters", space, address, bytes);
      if (address + bytes > m.kernel->param_bytes) {
        raise(m, t, FaultKind::kOutOfBounds, "beyond the launch's parameters", space, address, bytes);
      }
      return {space, reinterpret_cast<u8*>(const_cast<char*>(t.param)) + address, nullptr, address, address, nullptr};
    default: break;
  }
  // Global and constant memory: buffers are sorted and apart.
  auto after = std::upper_bound(m.buffers.begin(), m.buffers.end(), address,
                                [](u64 a, const Buffer& buffer) { return a < buffer.begin; });
  if (after != m.buffers.begin()) {
    Buffer& buffer = *std::prev(after);
    if (address + bytes <= buffer.end) {
      if (write && !buffer.writable) {
        raise(m, t, FaultKind::kReadOnly, "a store into " + buffer.name + ", which is read only", space, address,
              bytes);
      }
      const u64 offset = address - (buffer.begin & ~u64{15});
      return {space, reinterpret_cast<u8*>(address), buffer.writable && m.checks ? &buffer.shadow : nullptr, offset,
              address, nullptr};
    }
  }
  std::string what = "outside of all memory that the launch may touch";
  u64 nearest = ~u64{0};
  for (const Buffer& buffer : m.buffers) {
    if (address >= buffer.end && address - buffer.end < nearest) {
      nearest = address - buffer.end;
      what = named(nearest) + " behind the end of " + buffer.name + " (" + named(buffer.end - buffer.begin) + ")";
    } else if (address + bytes > buffer.end && address < buffer.end && address >= buffer.begin) {
      nearest = 0;
      what = "across the end of " + buffer.name + " (" + named(buffer.end - buffer.begin) + ")";
    } else if (address < buffer.begin && buffer.begin - address < nearest) {
      nearest = buffer.begin - address;
      what = named(nearest) + " before the beginning of " + buffer.name + " (" + named(buffer.end - buffer.begin) + ")";
    }
  }
  raise(m, t, FaultKind::kOutOfBounds, what, space, address, bytes);
}

void watch(Machine& m, Thread& t, const Range& range, u32 bytes, bool write, Strength strength, u32 agent, u32 clock,
           s32 instruction, const Block* owner) {
  Shadow& shadow = *range.shadow;
  const u64 first = range.offset / shadow.grain, last = (range.offset + bytes - 1) / shadow.grain;
  const Access now{(owner != nullptr ? owner : t.block)->index, agent, clock, instruction, t.index};
  const u32 threads = t.block->threads;
  const bool async = agent >= 4 * threads;
  const auto both_strong = [&](const Access& other, Strength its) {
    const Strength least = other.block == now.block ? Strength::kBlock
                           : same_cluster(m, other.block, now.block) ? Strength::kCluster : Strength::kGrid;
    return strength >= least && its >= least;
  };
  for (u64 n = first; n <= last; ++n) {
    Cell& cell = shadow.cells[n];
    const bool ours = cell.write.block == now.block && cell.write.agent == agent && agent < threads;
    if (!write && !cell.written && range.space == Space::kShared) {
      raise(m, t, FaultKind::kUninitialised, "a read of shared memory that nobody has written", range.space,
            range.address, bytes);
    }
    if (cell.write.instruction >= 0 && !ours && !both_strong(cell.write, cell.write_strength)) {
      // The asynchronous proxy must know that what an ordinary write wrote has passed a fence.
      const bool crosses = async && cell.write.agent < 2 * threads;
      if (!knows(t, cell.write, cell.write.agent + (crosses ? 2 * threads : 0))) {
        conflict(m, t, range, bytes, write, agent, instruction, cell.write, true);
      }
    }
    if (write) {
      const auto check = [&](const Access& read, Strength its) {
        if (read.instruction < 0 || both_strong(read, its)) return;
        if (read.block == now.block && read.agent == agent && agent < threads) return;
        if (!knows(t, read)) conflict(m, t, range, bytes, write, agent, instruction, read, false);
      };
      check(cell.read, cell.read_strength);
      if (cell.more_reads != 0) {
        for (const auto& [read, its] : shadow.reads[cell.more_reads - 1]) check(read, its);
        shadow.reads[cell.more_reads - 1].clear();
      }
      cell.read.instruction = -1;
      cell.write = now;
      cell.write_strength = strength;
      cell.written = true;
    } else if (cell.read.instruction < 0 || (cell.read.agent == agent && cell.read.block == now.block) ||
               (cell.more_reads == 0 && knows(t, cell.read))) {
      cell.read = now;
      cell.read_strength = strength;
    } else {
      if (cell.more_reads == 0) {
        shadow.reads.emplace_back();
        cell.more_reads = static_cast<u32>(shadow.reads.size());
      }
      auto& reads = shadow.reads[cell.more_reads - 1];
      const auto same = std::find_if(reads.begin(), reads.end(), [&](const auto& each) {
        return each.first.agent == agent && each.first.block == now.block;
      });
      if (same != reads.end()) {
        *same = {now, strength};
      } else {
        reads.emplace_back(now, strength);
      }
    }
  }
}

void tick(Thread& t) { ++more(t).clock[t.index]; }

void load(Thread& t, Space space, u64 address, void* to, u32 bytes, Order order, Scope scope) {
  const Range range = find(t, space, address, bytes, false);
  if (range.space == Space::kShared && !t.machine->conflicts.empty()) count_banks(t, range.address, bytes);
  keep_off_mbarriers(t, range, bytes);
  if (range.shadow != nullptr) {
    watch(*t.machine, t, range, bytes, false, strength_of(order, scope), t.index, more(t).clock[t.index], t.at);
    if (order != Order::kWeak) learn(t, range, order, scope);
  }
  std::memcpy(to, range.data, bytes);
}

void store(Thread& t, Space space, u64 address, const void* from, u32 bytes, Order order, Scope scope) {
  const Range range = find(t, space, address, bytes, true);
  if (range.space == Space::kShared && !t.machine->conflicts.empty()) count_banks(t, range.address, bytes);
  keep_off_mbarriers(t, range, bytes);
  if (range.shadow != nullptr) {
    watch(*t.machine, t, range, bytes, true, strength_of(order, scope), t.index, more(t).clock[t.index], t.at);
    if (order != Order::kWeak) publish(t, range, order, scope, false);
  }
  if (range.space != Space::kLocal && std::memcmp(range.data, from, bytes) != 0) ++t.machine->progress;
  std::memcpy(range.data, from, bytes);
}

void read_shared(Machine& m, Thread& t, u64 address, void* to, u32 bytes) {
  const Range range = find(t, Space::kShared, address, bytes, false);
  if (!m.conflicts.empty()) count_banks(t, range.address, bytes);
  keep_off_mbarriers(t, range, bytes);
  if (range.shadow != nullptr) watch(m, t, range, bytes, false, Strength::kWeak, t.index, more(t).clock[t.index], t.at);
  std::memcpy(to, range.data, bytes);
}

void write_shared(Machine& m, Thread& t, u64 address, const void* from, u32 bytes) {
  const Range range = find(t, Space::kShared, address, bytes, true);
  if (!m.conflicts.empty()) count_banks(t, range.address, bytes);
  keep_off_mbarriers(t, range, bytes);
  if (range.shadow != nullptr) watch(m, t, range, bytes, true, Strength::kWeak, t.index, more(t).clock[t.index], t.at);
  std::memcpy(range.data, from, bytes);
  ++m.progress;
}

namespace {

template <typename T>
T take(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <typename T>
T apply(Atomic what, T old, T a, T b) {
  using U = Unsigned<T>;
  switch (what) {
    case Atomic::kAdd: return static_cast<T>(static_cast<U>(old) + static_cast<U>(a));
    case Atomic::kMin: return a < old ? a : old;
    case Atomic::kMax: return a > old ? a : old;
    case Atomic::kInc: return static_cast<U>(old) >= static_cast<U>(a) ? T(0) : static_cast<T>(old + 1);
    case Atomic::kDec: return old == 0 || static_cast<U>(old) > static_cast<U>(a) ? a : static_cast<T>(old - 1);
    case Atomic::kAnd: return static_cast<T>(old & a);
    case Atomic::kOr: return static_cast<T>(old | a);
    case Atomic::kXor: return static_cast<T>(old ^ a);
    case Atomic::kExch: return a;
    case Atomic::kCas: return old == a ? b : old;
  }
  return old;
}

template <typename T>
void change(u8* at, Atomic what, const void* a, const void* b) {
  const T old = take<T>(at), now = apply<T>(what, old, take<T>(a), b != nullptr ? take<T>(b) : T(0));
  std::memcpy(at, &now, sizeof(T));
}

template <typename H>
u16 half_change(Atomic what, u16 old, u16 a) {
  switch (what) {
    case Atomic::kAdd: return h_add<H, false, false>(old, a);
    case Atomic::kMin: return h_min<H, false>(old, a);
    case Atomic::kMax: return h_max<H, false>(old, a);
    default: return a;
  }
}

template <typename H>
u32 pair_change(Atomic what, u32 old, u32 a) {
  return each_half(old, a, [what](u16 x, u16 y) { return half_change<H>(what, x, y); });
}

u32 size_of(Type type) {
  switch (type) {
    case Type::kB8: case Type::kU8: case Type::kS8: case Type::kPred: return 1;
    case Type::kB16: case Type::kU16: case Type::kS16: case Type::kF16: case Type::kBf16: return 2;
    case Type::kB64: case Type::kU64: case Type::kS64: case Type::kF64: return 8;
    case Type::kB128: return 16;
    default: return 4;
  }
}

}  // namespace

void atomic(Thread& t, Space space, u64 address, Atomic what, Type type, const void* a, const void* b, void* old,
            Order order, Scope scope) {
  const u32 bytes = size_of(type);
  const Range range = find(t, space, address, bytes, true);
  keep_off_mbarriers(t, range, bytes);
  if (range.shadow != nullptr) {
    const u32 clock = more(t).clock[t.index];
    if (range.space == Space::kShared && !range.shadow->cells[range.offset / range.shadow->grain].written) {
      raise(*t.machine, t, FaultKind::kUninitialised, "an atomic operation on shared memory that nobody has written",
            range.space, address, bytes);
    }
    watch(*t.machine, t, range, bytes, true, strength_of(Order::kRelaxed, scope), t.index, clock, t.at);
    learn(t, range, order, scope);
    publish(t, range, order, scope, true);
  }
  u8 before[16];
  std::memcpy(before, range.data, bytes);
  switch (type) {
    case Type::kF32: {
      const float x = take<float>(range.data), y = take<float>(a);
      // Additions in global memory flush subnormals, those in shared memory do not.
      const bool flush = range.space == Space::kGlobal;
      const float now = what == Atomic::kAdd ? (flush ? out<true, false>(flushed(x) + flushed(y)) : canonical(x + y))
                        : what == Atomic::kMin ? f_min<false>(x, y)
                        : what == Atomic::kMax ? f_max<false>(x, y) : y;
      std::memcpy(range.data, &now, 4);
      break;
    }
    case Type::kF64: {
      const double x = take<double>(range.data), y = take<double>(a);
      const double now = what == Atomic::kAdd ? x + y : y;
      std::memcpy(range.data, &now, 8);
      break;
    }
    case Type::kF16: case Type::kBf16: {
      const u16 x = take<u16>(range.data), y = take<u16>(a);
      const u16 now = type == Type::kF16 ? half_change<Half>(what, x, y) : half_change<Bfloat>(what, x, y);
      std::memcpy(range.data, &now, 2);
      break;
    }
    case Type::kF16x2: case Type::kBf16x2: {
      const u32 x = take<u32>(range.data), y = take<u32>(a);
      const u32 now = type == Type::kF16x2 ? pair_change<Half>(what, x, y) : pair_change<Bfloat>(what, x, y);
      std::memcpy(range.data, &now, 4);
      break;
    }
    case Type::kS32: change<s32>(range.data, what, a, b); break;
    case Type::kS64: change<s64>(range.data, what, a, b); break;
    case Type::kB16: case Type::kU16: change<u16>(range.data, what, a, b); break;
    case Type::kB64: case Type::kU64: change<u64>(range.data, what, a, b); break;
    case Type::kB128: change<unsigned __int128>(range.data, what, a, b); break;
    default: change<u32>(range.data, what, a, b); break;
  }
  if (std::memcmp(before, range.data, bytes) != 0) ++t.machine->progress;
  if (old != nullptr) std::memcpy(old, before, bytes);
}

}  // namespace fagen::emulate
