// Which tiles of keys a block of query rows visits, from the last to the first, as one warp finds them for warpgroups of
// 64 rows each.
#pragma once
#include "fagen/bounds.h"
#include "fagen/cuda/key_range.h"
#include "fagen/cuda/threads.h"
#include "fagen/ptx/math.h"

namespace fagen {
namespace {

// A tile to visit, or none: -1. Bit g of `whole`: the mask admits all pairs of warpgroup g, and no key is past the end.
struct TileFound {
  int tile;
  uint32_t whole;
};

// All of them; the last may have keys past the end.
template <int kGroups>
class AllGroupTiles {
 public:
  __device__ __forceinline__ AllGroupTiles(int keys, int tile) : left_((keys + tile - 1) / tile), whole_(keys / tile) {}

  __device__ __forceinline__ TileFound take() {
    if (left_ == 0) return {-1, 0};
    --left_;
    return {left_, left_ < whole_ ? (1u << kGroups) - 1 : 0};
  }

 private:
  int left_, whole_;
};

// Those that a mask does not rule out. It is asked of 32 tiles at once, a lane each.
template <int kGroups>
class GroupTiles {
 public:
  // Of `tiles` tiles.
  __device__ __forceinline__ explicit GroupTiles(int tiles) : base_(tiles) {}

  // The next. `below(tile)` is the range of tiles, first to last - 1, outside which none below `tile` counts;
  // `test(tile, group)` says what the mask admits of a tile's pairs with a warpgroup's rows. Of a group without rows it
  // is kNone.
  template <class Below, class Test>
  __device__ __forceinline__ TileFound take(Below below, Test test) {
    while (left_ == 0 && base_ > 0) {
      const KeyRange range = below(base_);
      base_ = range.last - 32;  // lane 31 is at the last
      const int tile = base_ + lane_id();
      const bool asked = tile >= range.first && tile >= 0;
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        const Tri admitted = asked ? test(tile, group) : Tri::kNone;
        left_ |= __ballot_sync(~0u, admitted != Tri::kNone);
        const uint32_t whole = __ballot_sync(~0u, admitted == Tri::kAll);
        // A lane keeps of its own tile who sees all of it.
        mine_ = group == 0 ? 0 : mine_;
        mine_ |= (whole >> lane_id() & 1) << group;
      }
    }
    if (left_ == 0) return {-1, 0};
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return {base_ + bit, __shfl_sync(~0u, mine_, bit)};
  }

 private:
  int base_;
  uint32_t left_ = 0, mine_ = 0;
};

// What a mask admits of 32 tiles, as it was found before: of every warpgroup some pairs, and of each all.
template <int kGroups>
struct TileWord {
  uint32_t some, whole[kGroups];
};

// Tiles that are read from such words.
template <int kGroups>
class StoredTiles {
 public:
  __device__ __forceinline__ StoredTiles(const TileWord<kGroups>* words, int count) : words_(words), left_words_(count) {}

  __device__ __forceinline__ TileFound take() {
    while (left_ == 0 && left_words_ > 0) {
      const TileWord<kGroups>& word = words_[--left_words_];
      left_ = word.some, mine_ = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) mine_ |= (word.whole[group] >> lane_id() & 1) << group;
    }
    if (left_ == 0) return {-1, 0};
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return {32 * left_words_ + bit, __shfl_sync(~0u, mine_, bit)};
  }

 private:
  const TileWord<kGroups>* words_;
  int left_words_;
  uint32_t left_ = 0, mine_ = 0;
};

}  // namespace
}  // namespace fagen
