// Who waits where when nobody can go on, a line a place; and whether those who spin have come any further.
#include "machine.h"

namespace fagen::emulate {

void deadlock(Machine& m) {
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

}  // namespace fagen::emulate
