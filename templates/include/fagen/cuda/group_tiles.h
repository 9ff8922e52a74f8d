// Which tiles of keys a block of query rows visits, from the last to the first, for warpgroups of 64 rows each.
#pragma once
#include "fagen/bounds.h"
#include "fagen/cuda/key_range.h"
#include "fagen/cuda/threads.h"
#include "fagen/params.h"

namespace fagen {
namespace {

// A tile to visit, or none: -1. Bit g of `flags`: the mask admits all pairs of warpgroup g, and no key is past the end; and
// of kNone << g: it admits none.
struct TileFound {
  static constexpr uint32_t kNone = 1 << 4;

  int tile;
  uint32_t flags;
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

// What a mask admits of 32 tiles: of each warpgroup some pairs, and all.
template <int kGroups>
struct TileWord {
  uint32_t some[kGroups], whole[kGroups];

  // Of any warpgroup.
  __device__ __forceinline__ uint32_t any() const {
    uint32_t found = some[0];
#pragma unroll
    for (int group = 1; group < kGroups; ++group) found |= some[group];
    return found;
  }
};

// What a warp finds: of one warpgroup, a byte of a word. Four lanes ask for each of its tiles: what one asks of params the
// others help to look through.
template <int kGroups>
struct Finder {
  int group, byte;
  uint32_t work;  // which words, if each block of rows has `words`

  __device__ __forceinline__ explicit Finder(uint32_t words) {
    uint32_t part = blockIdx.x * kFinders + static_cast<uint32_t>(warp_id());
    group = static_cast<int>(part % kGroups), part /= kGroups;
    byte = static_cast<int>(part % (4 * words)), work = part / (4 * words);
  }

  // `test(tile)` says what the mask admits of a tile's pairs with the warpgroup's rows; of one without rows it is kNone.
  template <class Test>
  __device__ __forceinline__ void find(TileWord<kGroups>* words, Test test) const {
    const Tri admitted = test(8 * byte + lane_id() % 8);
    const uint32_t some = __ballot_sync(~0u, admitted != Tri::kNone), whole = __ballot_sync(~0u, admitted == Tri::kAll);
    if (lane_id() != 0) return;
    TileWord<kGroups>& word = words[byte / 4];
    reinterpret_cast<uint8_t*>(&word.some[group])[byte % 4] = static_cast<uint8_t>(some);
    reinterpret_cast<uint8_t*>(&word.whole[group])[byte % 4] = static_cast<uint8_t>(whole);
  }
};

// Tiles by words that were stored, which a warp reads.
template <int kGroups>
class StoredTiles {
 public:
  __device__ __forceinline__ StoredTiles(const TileWord<kGroups>* words, int count) : words_(words), word_(count) {}

  __device__ __forceinline__ TileFound take() {
    while (left_ == 0 && word_ > 0) {
      // 32 words at a time: of long rows that a window sees little of, most are empty.
      const int mine = word_ - 1 - lane_id();
      const uint32_t some = mine < 0 ? 0 : words_[mine].any(), filled = __ballot_sync(~0u, some != 0);
      const int skipped = filled == 0 ? 31 : __ffs(static_cast<int>(filled)) - 1;
      word_ -= 1 + skipped;  // where the last word is that was asked for, or the first that has some
      if (filled == 0) continue;
      left_ = __shfl_sync(~0u, some, skipped), flags_ = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        flags_ |= (words_[word_].whole[group] >> lane_id() & 1) << group;
        flags_ |= (~words_[word_].some[group] >> lane_id() & 1) * TileFound::kNone << group;
      }
    }
    if (left_ == 0) return {-1, 0};
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return {32 * word_ + bit, __shfl_sync(~0u, flags_, bit)};
  }

 private:
  const TileWord<kGroups>* words_;
  int word_;
  uint32_t left_ = 0, flags_ = 0;  // tiles of a word; those of a lane's own tile
};

// Tiles for which the mask is asked when they are needed: by a warp, 32 at once, a lane each.
template <int kGroups, class Below, class Test>
class AskedTiles {
 public:
  __device__ __forceinline__ AskedTiles(int tiles, Below below, Test test) : below_(below), test_(test), base_(tiles) {}

  __device__ __forceinline__ TileFound take() {
    while (left_ == 0 && base_ > 0) {
      const KeyRange range = below_(base_);
      base_ = range.last - 32;  // lane 31 is at the last
      const int tile = base_ + lane_id();
      flags_ = 0;
#pragma unroll 1
      for (int group = 0; group < kGroups; ++group) {
        const Tri admitted = tile >= range.first ? test_(tile, group) : Tri::kNone;
        flags_ |= (admitted == Tri::kAll ? 1u : admitted == Tri::kNone ? TileFound::kNone : 0u) << group;
      }
      left_ = __ballot_sync(~0u, flags_ != ((1u << kGroups) - 1) * TileFound::kNone);
    }
    if (left_ == 0) return {-1, 0};
    const int bit = 31 - __clz(static_cast<int>(left_));
    left_ &= ~(1u << bit);
    return {base_ + bit, __shfl_sync(~0u, flags_, bit)};
  }

 private:
  const Below below_;
  const Test test_;
  int base_;
  uint32_t left_ = 0, flags_ = 0;  // tiles of those asked for last; what is known of a lane's own
};

// `below(tile)` is the range of tiles, first to last - 1, outside which none below `tile` counts; `test(tile, group)` says
// what the mask admits of a tile's pairs with a warpgroup's rows.
template <int kGroups, class Below, class Test>
__device__ __forceinline__ AskedTiles<kGroups, Below, Test> ask_tiles(int tiles, Below below, Test test) {
  return {tiles, below, test};
}

}  // namespace
}  // namespace fagen
