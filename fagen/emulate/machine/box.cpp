// Boxes that tensor copies move: their runs of elements in the tensor, and where these lie in shared memory. Source: PTX
// ISA, Tensors.
#include "box.h"

#include <algorithm>

namespace fagen::emulate {

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

}  // namespace fagen::emulate
