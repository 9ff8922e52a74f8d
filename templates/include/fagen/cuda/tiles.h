// Which tiles of keys a block of query rows visits, from the last to the first.
#pragma once
#include "fagen/bounds.h"
#include "fagen/cuda/threads.h"

namespace fagen {
namespace {

// A truth value that is a type.
template <bool kValue>
struct Is {
  static constexpr bool value = kValue;
};

// All of them; the last may have keys past the end.
class AllTiles {
 public:
  __device__ __forceinline__ AllTiles(int keys, int tile) : left_((keys + tile - 1) / tile), whole_(keys / tile) {}

  __device__ __forceinline__ int next() { return --left_; }
  __device__ __forceinline__ bool whole(int tile) const { return tile < whole_; }

 private:
  int left_, whole_;
};

// Those that a mask does not rule out. It is asked of 32 tiles at once, a lane each.
class Tiles {
 public:
  // Tiles first to last - 1.
  __device__ __forceinline__ Tiles(int first, int last) : lowest_(first), base_(last) {}

  // Tiles of a list of ranges of keys.
  static __device__ __forceinline__ Tiles of(const Ranges& keys, int tile) {
    if (keys.count == 0) return {0, 0};
    const int first = static_cast<int>(keys.range[0].first) / tile;
    int last = 0;
#pragma unroll
    for (int n = 0; n < Ranges::kCapacity; ++n)
      if (n < keys.count) last = (static_cast<int>(keys.range[n].last) + tile - 1) / tile;
    return {first, last};
  }

  // The next tile that `test` (what the mask admits of a tile, of the whole block's pairs) does not rule out, or -1.
  template <class Test>
  __device__ __forceinline__ int next(Test test) {
    while (left_ == 0) {
      if (base_ <= lowest_) return -1;
      base_ -= 32;  // lane 31 is at the last
      const int tile = base_ + lane_id();
      const Tri admitted = tile >= lowest_ && tile >= 0 ? test(tile) : Tri::kNone;
      left_ = __ballot_sync(~0u, admitted != Tri::kNone);
      whole_ = __ballot_sync(~0u, admitted == Tri::kAll);
      asked_ = false;
    }
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return base_ + bit;
  }

  // Whether the mask admits all of the tile that next() gave last: of the block's pairs.
  __device__ __forceinline__ bool whole(int tile) const { return whole_ >> (tile - base_) & 1; }

  // The same of the warp's own pairs, of which `test` tells. Asked for as many tiles as next() has looked at, when the
  // first of them is already on its way.
  template <class Test>
  __device__ __forceinline__ bool whole_for_warp(int tile, Test test) {
    if (!asked_) {
      const int each = base_ + lane_id();
      const bool open = each >= lowest_ && each >= 0 && !(whole_ >> lane_id() & 1);
      warp_whole_ = whole_ | __ballot_sync(~0u, open && test(each) == Tri::kAll);
      asked_ = true;
    }
    return warp_whole_ >> (tile - base_) & 1;
  }

 private:
  int lowest_, base_;
  uint32_t left_ = 0, whole_ = 0, warp_whole_ = 0;
  bool asked_ = false;
};

}  // namespace
}  // namespace fagen
