// Which tiles of keys a block of query rows visits, from the last to the first.
#pragma once
#include "fagen/bounds.h"
#include "fagen/cuda/key_range.h"
#include "fagen/cuda/threads.h"
#include "fagen/ptx/barrier.h"
#include "fagen/ptx/math.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// Whether a mask admits all pairs of a tile, and there is no key past the end.
struct Admitted {
  bool own;  // of a warp's rows
  bool all;  // of the block's rows
};

// All of them; the last may have keys past the end.
class AllTiles {
 public:
  __device__ __forceinline__ AllTiles(int keys, int tile) : left_((keys + tile - 1) / tile), whole_(keys / tile) {}

  __device__ __forceinline__ int take() {
    ptx::hide(left_);  // the first and the last pass through a loop are as the others: one copy of the code
    return --left_;
  }
  __device__ __forceinline__ Admitted admitted(int tile) const {
    const bool whole = tile < whole_;
    return {whole, whole};
  }

 private:
  int left_, whole_;
};

// Those that a mask does not rule out. It is asked of 32 tiles at once, a lane each, by every warp for its own rows; what
// the warps find is put together in shared memory, where it stays: registers are for sums.
template <int kWarps>
class Tiles {
 public:
  static constexpr int kBytes = kWarps * 16;  // of shared memory

  // Of `tiles` tiles.
  __device__ __forceinline__ Tiles(uint32_t shared, int tiles) : shared_(shared), base_(tiles) {}

  // Looks for tiles that are not ruled out for all warps; all threads of the block do it together. `below(tile)` is the
  // range of tiles, first to last - 1, outside which none below `tile` counts. `test(tile)` says what the mask admits of a
  // tile, of the pairs of this warp's rows; nothing of a warp that `rests`, without rows, or of a tile below 0.
  template <class Below, class Test>
  __device__ __forceinline__ void find(bool rests, Below below, Test test) {
    while (wanting()) {
      const KeyRange range = below(base_);
      base_ = range.last - 32;  // lane 31 is at the last
      const int tile = base_ + lane_id();
      const Tri admitted = test(tile);  // by all lanes, which may read params together
      const Tri own = !rests && tile >= range.first && tile >= 0 ? admitted : Tri::kNone;
      const uint32_t some = __ballot_sync(~0u, own != Tri::kNone), all = __ballot_sync(~0u, own == Tri::kAll);
      ptx::sync_block();  // nobody reads the last tiles' any more
      if (lane_id() == 0) ptx::st_shared_16(place(warp_id()), make_uint4(some, rests ? ~0u : all, 0, 0));
      ptx::sync_block();
      uint32_t whole = ~0u;
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) {
        const uint64_t found = ptx::ld_shared_8(place(warp));  // no more: what follows is being written
        left_ |= static_cast<uint32_t>(found), whole &= static_cast<uint32_t>(found >> 32);
      }
      if (lane_id() == 0) ptx::st_shared_4(place(warp_id()) + 8, whole);
      __syncwarp();
    }
  }

  // Whether all that are known are taken, and the mask has not been asked of some.
  __device__ __forceinline__ bool wanting() const { return left_ == 0 && base_ > 0; }

  // The next of those found, or -1.
  __device__ __forceinline__ int take() {
    const int bit = 31 - __clz(static_cast<int>(left_));
    const int tile = left_ == 0 ? -1 : base_ + bit;
    left_ &= ~(1u << (bit & 31));
    return tile;
  }

  // Of the tile that take() gave last, before find() is called again.
  __device__ __forceinline__ Admitted admitted(int tile) const {
    const uint4 found = ptx::ld_shared_16(place(warp_id()));
    const int bit = tile - base_;
    return {(found.y >> bit & 1) != 0, (found.z >> bit & 1) != 0};
  }

 private:
  __device__ __forceinline__ uint32_t place(int warp) const { return shared_ + static_cast<uint32_t>(warp) * 16; }

  uint32_t shared_;
  int base_;
  uint32_t left_ = 0;
};

}  // namespace
}  // namespace fagen
