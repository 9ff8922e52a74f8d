// Boxes that tensor copies move.
#pragma once
#include "machine.h"
#include "tensormap.h"

namespace fagen::emulate {

// What lies at an address; a fault if it is no tensor map.
TensorMap map_at(Thread&, Space, u64 address);

struct Run {  // of elements along the innermost dimension: global memory, unless it is outside of the tensor
  bool inside;
  u64 global;
  u64 offset;  // into the box
  u32 bytes;
};

// The box at the coordinates, as runs in the order of shared memory.
std::vector<Run> runs_of(const TensorMap&, const s32* at);
// What shared memory must be for a tensor copy of `rank` dimensions. Returns the bytes of the box.
u64 check_box(Thread&, const TensorMap&, u64 shared, const std::vector<Run>&, u32 rank);
// Pieces between shared memory (at `address`, `data`) and the runs; `load` is into shared memory.
void lay(std::vector<Piece>&, const std::vector<Run>&, u64 address, u8* data, u8 swizzle, bool load);

}  // namespace fagen::emulate
