// A launch as Python asks for it, and what is told of it.
#include <algorithm>
#include <cstdlib>
#include <exception>

#include "machine.h"

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

void trap(Thread& t) { raise(*t.machine, t, FaultKind::kTrap, "the kernel trapped"); }

void program_fault(Thread& t, const char* what) { raise(*t.machine, t, FaultKind::kProgram, what); }

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
  m.start = processor_seconds();
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
