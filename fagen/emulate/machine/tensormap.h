// The emulator's tensor maps: a record of its own in the 128 bytes, whose insides PTX never sees.
#pragma once
#include "thread.h"

namespace fagen::emulate {

constexpr u32 kMostRank = 5;
constexpr u64 kTensorMapBytes = 128;

// Numbers of `type` and `swizzle` are those of CUtensorMapDataType and CUtensorMapSwizzle.
struct TensorMap {
  u32 mark;
  u8 rank, type, swizzle, element;  // element: bytes of one
  u64 address;
  u64 strides[kMostRank - 1];  // bytes, of dimension 1 and on
  u32 last[kMostRank];         // the dimension less one: it may be 2^32
  u16 box[kMostRank];
  u16 steps[kMostRank];
  u32 sum;                     // of all before it
};
static_assert(sizeof(TensorMap) <= kTensorMapBytes);

constexpr u32 kTensorMapMark = 0x70614d54;
u32 sum_of(const TensorMap&);
// How many chunks of 16 bytes a swizzle mixes; 1 is none.
inline u32 chunks_of(u8 swizzle) { return 1u << swizzle; }
// Where an address of shared memory is found under a swizzle: its 16-byte chunks change places by the 128-byte line.
inline u64 swizzled(u64 address, u32 chunks, u32 base = 0) {
  return address ^ (((((address >> 7) - base) & 7) & (chunks - 1)) << 4);
}

}  // namespace fagen::emulate
