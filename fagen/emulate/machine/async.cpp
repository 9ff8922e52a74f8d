// cp.async: what is issued is in flight until its group is waited for, and lands at any time in between.
#include "machine.h"

namespace fagen::emulate {
namespace {

u32 agent_of(const Thread& t) { return t.block->threads + t.index; }

void land(Thread& t, Copy& copy) {
  if (copy.done) return;
  copy.done = true;
  u8* to = t.block->shared.data() + (copy.shared - kSharedFirst);
  if (copy.source_bytes != 0) std::memcpy(to, reinterpret_cast<const void*>(copy.global), copy.source_bytes);
  std::memset(to + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
  ++t.machine->progress;
}

void finish(Thread& t, CopyGroup& group) {
  for (Copy& copy : group.copies) land(t, copy);
  for (const u64 mbarrier : group.mbarriers) {
    Clock clock = more(t).clock;
    clock[agent_of(t)] = group.clock > clock[agent_of(t)] ? group.clock : clock[agent_of(t)];
    arrive_for_copies(t, mbarrier, clock);
  }
  group.mbarriers.clear();
}

}  // namespace

void copy_async(Thread& t, u64 shared, u64 global, u32 bytes, u32 source_bytes) {
  Machine& m = *t.machine;
  if (source_bytes > bytes) {
    raise(m, t, FaultKind::kProgram, "cp.async reads more than it writes", Space::kShared, shared, bytes);
  }
  const u32 clock = more(t).groups_committed + 1;
  const Range to = find(t, Space::kShared, shared, bytes, true);
  keep_off_mbarriers(t, to, bytes);
  if (source_bytes != 0) {
    if (global % bytes != 0) {
      raise(m, t, FaultKind::kMisaligned, "a source that is no multiple of the bytes copied", Space::kGlobal, global,
            bytes);
    }
    // Only the bytes that are read must exist; they are looked up in parts that are aligned.
    u32 done = 0;
    while (done < source_bytes) {
      u32 part = 16;
      while (part > source_bytes - done || (global + done) % part != 0) part /= 2;
      const Range from = find(t, Space::kGlobal, global + done, part, false);
      if (from.shadow != nullptr) watch(m, t, from, part, false, Strength::kWeak, agent_of(t), clock, t.at);
      done += part;
    }
  }
  if (to.shadow != nullptr) watch(m, t, to, bytes, true, Strength::kWeak, agent_of(t), clock, t.at);
  more(t).open.push_back({shared, global, bytes, source_bytes, t.at});
  if (m.completions == Completions::kEarliest) land(t, more(t).open.back());
}

void copy_commit(Thread& t) {
  CopyGroup group;
  group.copies = std::move(more(t).open);
  more(t).open.clear();
  group.clock = ++more(t).groups_committed;
  group.committed = true;
  more(t).groups.push_back(std::move(group));
}

bool copy_wait(Thread& t, u32 pending) {
  auto& groups = more(t).groups;
  u32 committed = 0;
  for (const CopyGroup& group : groups) committed += group.committed;
  while (committed > pending) {
    finish(t, groups.front());
    u32& known = more(t).clock[agent_of(t)];
    known = groups.front().clock > known ? groups.front().clock : known;
    committed -= groups.front().committed;
    groups.pop_front();
  }
  return true;
}

void copy_arrive(Thread& t, u64 address, bool noinc) {
  if (!noinc) expect_copies(t, address);
  // All copies that the thread has issued so far count, committed or not.
  CopyGroup group;
  group.copies = std::move(more(t).open);
  more(t).open.clear();
  group.clock = ++more(t).groups_committed;
  group.mbarriers.push_back(address);
  more(t).groups.push_back(std::move(group));
  if (t.machine->completions == Completions::kEarliest) {
    for (CopyGroup& each : more(t).groups) finish(t, each);
  }
}

void complete_some(Thread& t) {
  Machine& m = *t.machine;
  for (CopyGroup& group : more(t).groups) {
    bool all = true;
    for (Copy& copy : group.copies) {
      if (copy.done || m.flip()) {
        land(t, copy);
      } else {
        all = false;
      }
    }
    if (!all || m.flip()) return;  // groups complete in order
    finish(t, group);
  }
  for (Copy& copy : more(t).open) {
    if (m.flip()) land(t, copy);
  }
}

bool complete_all(Thread& t) {
  bool any = false;
  for (CopyGroup& group : more(t).groups) {
    any |= !group.mbarriers.empty();
    for (const Copy& copy : group.copies) any |= !copy.done;
    finish(t, group);
  }
  for (Copy& copy : more(t).open) {
    any |= !copy.done;
    land(t, copy);
  }
  return any;
}

}  // namespace fagen::emulate
