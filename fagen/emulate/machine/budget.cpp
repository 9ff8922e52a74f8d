// setmaxnreg: the registers of a block's threads, which warps give back and ask for. Source: PTX ISA, setmaxnreg.
#include "machine.h"

namespace fagen::emulate {

bool set_registers(Thread& t, u32 count, bool more_of_them) {
  Machine& m = *t.machine;
  ThreadMore& own = t.block->more[t.index];
  if (count < 24 || count > 256 || count % 8 != 0) {
    raise(m, t, FaultKind::kLimits,
          "setmaxnreg: " + std::to_string(count) + " registers, expected a multiple of 8 from 24 to 256");
  }
  if (more_of_them ? count < own.registers : count > own.registers) {
    raise(m, t, FaultKind::kLimits,
          std::string("setmaxnreg.") + (more_of_them ? "inc" : "dec") + " to " + std::to_string(count) +
              " registers, of " + std::to_string(own.registers));
  }
  const s64 difference = s64{count} - own.registers;
  own.wants_registers = difference > t.block->free_registers;
  if (own.wants_registers) return false;
  t.block->free_registers -= difference;
  own.registers = count;
  ++m.progress;
  return true;
}

}  // namespace fagen::emulate
