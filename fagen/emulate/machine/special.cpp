// Special registers that a thread asks the machine for, by the numbers of translate/special.py.
#include "machine.h"

namespace fagen::emulate {

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

}  // namespace fagen::emulate
