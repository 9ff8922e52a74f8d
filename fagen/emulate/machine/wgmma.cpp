// wgmma.mma_async: each warp of a warpgroup computes its 16 of the 64 rows, when it is waited for or sooner. Source: PTX
// ISA, Asynchronous Warpgroup Level Matrix Multiply-Accumulate Operation. Operands of the collective: D's registers, A's
// descriptor or four registers, B's descriptor, scale-d, then where D's and A's registers are noted. Detail: N | D's
// registers << 16, elements of A | B << 8 | D << 16, and the bits below.
#include <algorithm>

#include "descriptor.h"
#include "elements.h"
#include "machine.h"

#define FAGEN_COLLECTIVE extern "C" __attribute__((visibility("default"))) void

namespace fagen::emulate {
namespace {

enum : s32 { kARegisters = 1, kATransposed = 2, kBTransposed = 4, kANegated = 8, kBNegated = 16, kSaturates = 32 };

constexpr u32 kMostColumns = 256, kDepthBytes = 32, kWarpRows = 16;

struct Form {
  u32 columns, registers;  // N; of D
  s32 a, b, d, flags;      // elements

  explicit Form(const Collective& op)
      : columns(static_cast<u32>(op.detail[0] & 0xffff)), registers(static_cast<u32>(op.detail[0]) >> 16),
        a(op.detail[1] & 0xff), b(op.detail[1] >> 8 & 0xff), d(op.detail[1] >> 16), flags(op.detail[2]) {}
  u32 depth() const { return kDepthBytes * 8 / static_cast<u32>(bits_of(a)); }
  s32 a_first() const { return static_cast<s32>(registers); }
  s32 a_count() const { return flags & kARegisters ? 4 : 1; }
  s32 b_first() const { return a_first() + a_count(); }
  s32 noted() const { return b_first() + 2; }
};

// Calls f(row, k, address) for each 16 bytes of `rows` rows from `first` on.
template <typename F>
void each_chunk(u64 bits, u32 first, u32 rows, bool transposed, u32 depth, F f) {
  const Descriptor at(bits);
  if (transposed) {
    for (u32 k = 0; k < depth; ++k) {
      for (u32 row = 0; row < rows; row += 8) f(row, k, at.along_rows(first + row, k));
    }
  } else {
    for (u32 row = 0; row < rows; ++row) {
      for (u32 half = 0; half < 2; ++half) f(row, half * depth / 2, at.along_k(first + row, half));
    }
  }
}

// The matrix of a descriptor, as to[k * pitch + row].
template <typename T, typename Read>
void gather(Block& block, u64 bits, u32 first, u32 rows, bool transposed, u32 depth, s32 element, u32 pitch, T* to,
            Read read) {
  const u32 bytes = static_cast<u32>(bits_of(element)) / 8, per_chunk = 16 / bytes;
  each_chunk(bits, first, rows, transposed, depth, [&](u32 row, u32 k, u64 address) {
    const u8* from = block.shared.data() + (address - kSharedFirst);
    for (u32 n = 0; n < per_chunk; ++n) {
      u32 pattern = 0;
      std::memcpy(&pattern, from + n * bytes, bytes);
      to[transposed ? k * pitch + row + n : (k + n) * pitch + row] = static_cast<T>(read(pattern, element));
    }
  });
}

template <typename T, typename Read>
void gather_registers(const Warp& warp, const Collective& op, const Form& form, T* to, Read read) {
  const s32 width = bits_of(form.a), count = 32 / width;
  const u32 mask = width == 32 ? ~0u : (1u << width) - 1;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    for (s32 r = 0; r < 4; ++r) {
      const u32 pattern = *reinterpret_cast<u32*>(warp.lanes[lane].registers + op.operands[form.a_first() + r]);
      const u32 row = lane / 4 + 8 * static_cast<u32>(r % 2);
      const u32 k = static_cast<u32>(count) * (4 * static_cast<u32>(r / 2) + lane % 4);
      for (s32 n = 0; n < count; ++n) {
        to[(k + static_cast<u32>(n)) * kWarpRows + row] =
            static_cast<T>(read(pattern >> (n * width) & mask, form.a));
      }
    }
  }
}

// sums[row][column], of a[k][row] and b[k][column].
template <typename T>
void multiply(const T* a, const T* b, u32 columns, u32 depth, T (*sums)[kMostColumns]) {
  for (u32 row = 0; row < kWarpRows; ++row) {
    T* const sum = sums[row];
    std::fill(sum, sum + columns, T(0));
    for (u32 k = 0; k < depth; ++k) {
      const T x = a[k * kWarpRows + row];
      const T* const other = b + k * columns;
      for (u32 n = 0; n < columns; ++n) sum[n] += x * other[n];
    }
  }
}

template <typename T, typename Read, typename Store>
void carry_out(Block& block, u32 warp_index, const Product& product, Read read, Store store) {
  const Collective& op = *product.op;
  const Form form(op);
  Warp& warp = block.warp[warp_index];
  const u32 depth = form.depth();
  alignas(64) T a[kDepthBytes * kWarpRows];
  alignas(64) T b[kDepthBytes * kMostColumns];
  alignas(64) static T sums[kWarpRows][kMostColumns];  // one launch at a time
  if (form.flags & kARegisters) {
    gather_registers(warp, op, form, a, read);
  } else {
    gather(block, product.a, kWarpRows * (warp_index % 4), kWarpRows, form.flags & kATransposed, depth, form.a,
           kWarpRows, a, read);
  }
  gather(block, product.b, 0, form.columns, form.flags & kBTransposed, depth, form.b, form.columns, b, read);
  multiply(a, b, form.columns, depth, sums);
  const bool negative = !(form.flags & kANegated) != !(form.flags & kBNegated);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    char* const registers = warp.lanes[lane].registers;
    for (u32 i = 0; i < form.columns / 2; ++i) {
      const T sum = sums[lane / 4 + 8 * (i / 2 % 2)][8 * (i / 4) + 2 * (lane % 4) + i % 2];
      store(registers, op.operands, i, negative ? T{0} - sum : sum, product.accumulates);  // no sum of a card's is -0
    }
  }
}

template <typename T>
T& field(char* registers, s32 offset) {
  return *reinterpret_cast<T*>(registers + offset);
}

void carry_out(Block& block, u32 warp, const Product& product) {
  const Form form(*product.op);
  if (form.d == kES32) {
    const bool clamps = form.flags & kSaturates;
    carry_out<s32>(block, warp, product, integral, [=](char* registers, const s32* at, u32 i, s32 sum, bool adds) {
      u32& d = field<u32>(registers, at[i]);
      const s64 total = s64{sum} + (adds ? static_cast<s32>(d) : 0);
      d = static_cast<u32>(clamps ? std::clamp<s64>(total, -2147483648LL, 2147483647) : total);
    });
    return;
  }
  const auto put = [&](auto read) {
    if (form.d == kEF16) {
      carry_out<float>(block, warp, product, read, [](char* registers, const s32* at, u32 i, float sum, bool adds) {
        u16& d = field<u16>(registers, at[i / 2] + 2 * static_cast<s32>(i % 2));
        d = static_cast<u16>(encode(static_cast<double>(sum) + (adds ? value16(d) : 0.0), kF16, Round::kNearestEven));
      });
    } else {
      carry_out<float>(block, warp, product, read, [](char* registers, const s32* at, u32 i, float sum, bool adds) {
        u32& d = field<u32>(registers, at[i]);
        d = bits(canonical(adds ? sum + f32(d) : sum));
      });
    }
  };
  switch (form.a) {  // products of these are exact in float32; the hardware's order of adding is its own
    case kEF16: put([](u32 pattern, s32) { return widened_f16(static_cast<u16>(pattern)); }); break;
    case kEBf16: put([](u32 pattern, s32) { return f32(pattern << 16); }); break;
    case kETf32: put([](u32 pattern, s32) { return f32(pattern & 0xffffe000u); }); break;
    default: put([](u32 pattern, s32 element) { return small_float(pattern, element); }); break;
  }
}

void carry_out_until(Block& block, u32 warp, u32 serial) {
  WarpProducts& own = block.products[warp];
  for (const Product& product : own.flying) {
    if (product.serial <= own.carried || product.serial > serial) continue;
    carry_out(block, warp, product);
    own.carried = product.serial;
  }
}

u8* noted(Thread& t) {
  return reinterpret_cast<u8*>(t.registers) + t.machine->kernel->noted_offset;
}

// Marks the registers of a product that a lane has in flight.
void mark(Thread& t, const Collective& op) {
  const Form form(op);
  u8* const registers = reinterpret_cast<u8*>(t.registers);
  const s32* at = op.operands + form.noted();
  for (u32 n = 0; n < form.registers; ++n) registers[at[n]] |= kFlies;
  if (form.flags & kARegisters) {
    for (u32 n = 0; n < 4; ++n) registers[at[form.registers + n]] |= kIsRead;
  }
}

// What the product reads from shared memory, for the warp: recorded as the warpgroup's.
void record(Machine& m, Thread& t, const Product& product) {
  const Form form(*product.op);
  const u32 agent = 4 * t.block->threads + t.warp / 4;
  const auto read = [&](u32, u32, u64 address) {
    const Range range = find_all(t, Space::kShared, address, 16, 16, false);
    keep_off_mbarriers(t, range, 16);
    if (range.shadow != nullptr) {
      watch(m, t, range, 16, false, Strength::kWeak, agent, product.serial, t.at);
    }
  };
  const u32 depth = form.depth();
  if (!(form.flags & kARegisters)) {
    each_chunk(product.a, kWarpRows * (t.warp % 4), kWarpRows, form.flags & kATransposed, depth, read);
  }
  each_chunk(product.b, 0, form.columns, form.flags & kBTransposed, depth, read);
}

// All warps of a warpgroup bring the same products in the same order.
void agree(Machine& m, Thread& t, const Product& product, bool a_described) {
  Block& block = *t.block;
  Warpgroup& group = block.warpgroups[t.warp / 4];
  const u32 index = product.serial - 1 - group.first;
  if (index >= group.issued.size()) {
    group.issued.push_back({product.op->instruction, product.a, product.b});
  } else {
    const Warpgroup::Issued& first = group.issued[index];
    if (first.instruction != product.op->instruction || first.b != product.b || (a_described && first.a != product.a)) {
      raise(m, t, FaultKind::kCollective,
            first.instruction != product.op->instruction
                ? "warps of a warpgroup have come to different wgmma, and must execute them together"
                : "warps of a warpgroup bring different descriptors to a wgmma");
    }
  }
  u32 least = ~0u;
  for (u32 w = t.warp / 4 * 4; w < t.warp / 4 * 4 + 4; ++w) least = std::min(least, block.products[w].issued);
  for (; group.first < least; ++group.first) group.issued.pop_front();
}

void prune(WarpProducts& own) {
  while (!own.flying.empty() && own.flying.front().serial <= own.known) own.flying.pop_front();
  while (!own.groups.empty() && own.groups.front() <= own.known) own.groups.pop_front();
}

[[noreturn]] void register_fault(Thread& t, const Product* product, const std::string& what) {
  Fault fault{FaultKind::kWgmma, what, place_of(*t.machine, t), {}, Space::kGeneric, 0, 0};
  if (product != nullptr) {
    fault.other = fault.where;
    fault.other.instruction = product->op->instruction;
  }
  throw fault;
}

}  // namespace

FAGEN_COLLECTIVE fagen_wgmma_fence(Machine& m, Warp& warp, u32, const Collective&) {
  warp.lanes[0].block->products[warp.lanes[0].warp].fenced = true;
  for (u32 lane = 0; lane < kLanes; ++lane) {
    u8* const of = noted(warp.lanes[lane]);
    for (u32 n = 0; n < m.kernel->noted_count; ++n) of[n] &= static_cast<u8>(~kWritten);
  }
}

FAGEN_COLLECTIVE fagen_wgmma_commit(Machine&, Warp& warp, u32, const Collective&) {
  WarpProducts& own = warp.lanes[0].block->products[warp.lanes[0].warp];
  prune(own);
  own.groups.push_back(own.issued);
}

FAGEN_COLLECTIVE fagen_wgmma_meet(Machine&, Warp&, u32, const Collective&) {}

FAGEN_COLLECTIVE fagen_wgmma(Machine& m, Warp& warp, u32, const Collective& op) {
  Thread& t = warp.lanes[0];
  Block& block = *t.block;
  const Form form(op);
  if (t.warp / 4 * 4 + 4 > block.warps) {
    raise(m, t, FaultKind::kCollective, "a wgmma by a warpgroup that has not four warps");
  }
  WarpProducts& own = block.products[t.warp];
  if (!own.fenced) raise(m, t, FaultKind::kWgmma, "the first wgmma of a warp, without a wgmma.fence before it");
  prune(own);
  Product product{};
  product.op = &op;
  product.serial = ++own.issued;
  const bool described = !(form.flags & kARegisters);
  if (described) product.a = operand<u64>(warp, 0, form.a_first());
  product.b = operand<u64>(warp, 0, form.b_first());
  product.accumulates = operand<bool>(warp, 0, form.b_first() + 1);
  for (u32 lane = 0; lane < kLanes; ++lane) {
    if ((described && operand<u64>(warp, lane, form.a_first()) != product.a) ||
        operand<u64>(warp, lane, form.b_first()) != product.b ||
        operand<bool>(warp, lane, form.b_first() + 1) != product.accumulates) {
      raise(m, warp.lanes[lane], FaultKind::kCollective, "lanes bring different descriptors to a wgmma");
    }
    if (!m.checks) continue;
    const u8* const registers = reinterpret_cast<u8*>(warp.lanes[lane].registers);
    const u32 count = form.registers + (described ? 0 : 4);
    for (u32 n = 0; n < count; ++n) {
      if (registers[op.operands[form.noted() + static_cast<s32>(n)]] & kWritten) {
        register_fault(warp.lanes[lane], nullptr,
                       "a register of the wgmma has been written since the last wgmma.fence: operand register " +
                           std::to_string(n));
      }
    }
  }
  agree(m, t, product, described);
  record(m, t, product);
  own.flying.push_back(product);
  if (m.checks) {
    for (u32 lane = 0; lane < kLanes; ++lane) mark(warp.lanes[lane], op);
  }
  if (m.completions == Completions::kEarliest) carry_out_until(block, t.warp, own.issued);
}

bool wgmma_wait(Thread& t, u32 pending) {
  Machine& m = *t.machine;
  Block& block = *t.block;
  WarpProducts& own = block.products[t.warp];
  if (own.groups.size() <= pending) return true;
  const u32 target = own.groups[own.groups.size() - pending - 1];
  const u32 first = t.warp / 4 * 4;
  for (u32 w = first; w < std::min(first + 4, block.warps); ++w) {
    if (block.products[w].issued < target) return false;  // the others have yet to bring theirs
  }
  for (u32 w = first; w < std::min(first + 4, block.warps); ++w) carry_out_until(block, w, target);
  own.known = std::max(own.known, target);
  raise_to(block.more[t.index].clock, 4 * block.threads + t.warp / 4, target);
  if (m.checks) {
    u8* const of = noted(t);
    for (u32 n = 0; n < m.kernel->noted_count; ++n) of[n] &= kWritten;
    for (const Product& product : own.flying) {
      if (product.serial > target) mark(t, *product.op);
    }
  }
  ++m.progress;
  return true;
}

void carry_out_some(Machine& m, Block& block, u32 warp) {
  WarpProducts& own = block.products[warp];
  carry_out_until(block, warp, own.carried + 1 + static_cast<u32>(m.random() % 4));
}

void touched(Thread& t, u32 index, const char* name, bool write) {
  const s32 offset = static_cast<s32>(t.machine->kernel->noted_offset + index);
  const u8 flags = noted(t)[index];
  const Product* found = nullptr;
  for (const Product& product : t.block->products[t.warp].flying) {
    const Form form(*product.op);
    const s32* const at = product.op->operands + form.noted();
    if (std::find(at, at + form.registers + (form.flags & kARegisters ? 4 : 0), offset) !=
        at + form.registers + (form.flags & kARegisters ? 4 : 0)) {
      found = &product;
    }
  }
  register_fault(t, found,
                 std::string(write ? "a write of " : "a read of ") + name + ", which a wgmma in flight has as " +
                     (flags & kFlies ? "an accumulator" : "its A"));
}

}  // namespace fagen::emulate
