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
  __device__ __forceinline__ Tri admitted(int tile) const { return tile < whole_ ? Tri::kAll : Tri::kSome; }

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

  // The next tile that `block_test` (of a tile: what the mask admits of the whole block's pairs) does not rule out, or
  // -1. `warp_test` is the same of the warp's own rows: see admitted().
  template <class BlockTest, class WarpTest>
  __device__ __forceinline__ int next(BlockTest block_test, WarpTest warp_test) {
    const int lane = lane_id();
    while (left_ == 0) {
      if (base_ <= lowest_) return -1;
      base_ -= 32;  // lane 31 is at the last
      const int tile = base_ + lane;
      const bool real = tile >= lowest_ && tile >= 0;
      const bool seen = real && block_test(tile) != Tri::kNone;
      const bool whole = seen && warp_test(tile) == Tri::kAll;
      left_ = __ballot_sync(~0u, seen);
      all_ = __ballot_sync(~0u, whole);
    }
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return base_ + bit;
  }

  // Whether warp_test admitted all of the tile that next() gave last, or only some of it, or nothing.
  __device__ __forceinline__ Tri admitted(int tile) const {
    const int bit = tile - base_;
    return all_ >> bit & 1 ? Tri::kAll : Tri::kSome;
  }

 private:
  int lowest_, base_;
  uint32_t left_ = 0, all_ = 0;
};

}  // namespace
}  // namespace fagen
