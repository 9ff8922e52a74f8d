// dropout_d64_t4, forward, of spec cards: rendered by fagen, do not edit.
// mask: causal
// score: alibi(slope)
#include "fagen/cuda/array.h"
#include "fagen/cuda/math.h"
#include "fagen/cuda/nonfinite.h"
#include "fagen/cuda/dropout.h"
#include "fagen/cuda/exclude.h"
#include "fagen/cuda/products.h"
#include "fagen/cuda/softmax.h"
#include "fagen/cuda/tiles.h"

namespace fagen {
namespace {

using Element = F16;  // of q, k, v and o in memory

constexpr int kHeadDim = 64;
constexpr int kValueDim = 64;
constexpr int kTileQ = 128;  // query rows of a block of threads
constexpr int kTileKv = 48;  // keys of a tile
constexpr int kWarps = 4;
constexpr int kStages = 1;  // tiles of K and V in shared memory

constexpr int kThreads = 32 * kWarps;
constexpr int kWarpRows = kTileQ / kWarps;
constexpr int kRowTiles = kWarpRows / 16;
constexpr int kKeyTiles = kTileKv / 8;
constexpr int kValueTiles = kValueDim / 8;

using HeadRows = Rows<kHeadDim>;
using ValueRows = Rows<kValueDim>;
constexpr int kQBytes = kTileQ * (HeadRows::kBytes > ValueRows::kBytes ? HeadRows::kBytes : ValueRows::kBytes);
constexpr int kKBytes = kTileKv * HeadRows::kBytes;
constexpr int kVBytes = kTileKv * ValueRows::kBytes;
constexpr int kNotes = kQBytes + kStages * (kKBytes + kVBytes);  // where a block's Notes are in shared memory
constexpr int kMask = kNotes + 32;  // and what its mask admits, if it has one
static_assert(kMask + Tiles<kWarps>::kBytes == 28768, "what the launch asks for");

using Scores = float[kRowTiles][kKeyTiles][4];
using Sums = float[kRowTiles][kValueTiles][4];

// Rows [i, i + rows) of head h in batch b against keys [j, j + keys).
struct Block {
  int32_t b, h, i, rows, j;
  static constexpr int32_t keys = kTileKv;
};

// Of a block's pairs, what the mask admits.
__device__ __forceinline__ Tri mask_test(const ForwardParams& p, const Block& at) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span q = Span{at.i, at.i + at.rows - 1} + Span{kv_len - q_len};
  const Span kv{at.j, least(at.j + at.keys, kv_len) - 1};
  bool admits = false;
  {
    Pairs pairs(q, kv);
    pairs.difference.at_least(0);
    if (pairs.narrow()) admits = true;
  }
  if (!admits) return Tri::kNone;
  bool refuses = false;
  {
    Pairs pairs(q, kv);
    pairs.difference.at_most(-1);
    if (pairs.narrow()) refuses = true;
  }
  return refuses ? Tri::kSome : Tri::kAll;
}

// The same, and no key past the end.
__device__ __forceinline__ Tri tile_test(const ForwardParams& p, const Block& at) {
  if (at.j >= p.shape.kv_len) return Tri::kNone;
  const Tri admitted = mask_test(p, at);
  return at.j + at.keys > p.shape.kv_len ? admitted & Tri::kSome : admitted;
}

// The keys below a limit that the rows of a block may admit.
__device__ __forceinline__ KeyRange keys_below(const ForwardParams& p, const Block& at, int limit) {
  const auto between = [limit](int64_t first, int64_t last) { return KeyRange::between(first, last, limit); };
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span q = Span{at.i, at.i + at.rows - 1} + Span{kv_len - q_len};
  return between(0, least(kv_len, q.hi + 1));
}

// From q · k to scores. Of pairs that the mask excludes too.
__device__ __forceinline__ void score(const ForwardParams& p, const Block& at, Scores& x) {
  const Array<const float, 1> slope_at(p.params[0]);
  const int32_t h = at.h;
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const int lane = lane_id();
  // Columns first, so that what is of a key is not kept for the next row.
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      int32_t j = at.j + 8 * n + 2 * (lane % 4) + c;
      ptx::hide(j);
      const int32_t kv = j;
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row) {
        float& score = x[row / 2][n][row % 2 * 2 + c];
        const int32_t i = at.i + 8 * row + lane / 4;
        const int32_t q = i + kv_len - q_len;
        const float s = score * p.scale;
        const float slope_at_h = slope_at.load(h);
        score = s - slope_at_h * static_cast<float>(abs(q - kv));
      }
    }
}

// Whether the mask admits the pair at `row` and `column` of a block.
__device__ __forceinline__ bool admits(const ForwardParams& p, const Block& at, int row, int column) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const int32_t i = at.i + row;
  const int32_t q = i + kv_len - q_len;
  const int32_t j = at.j + column;
  const int32_t kv = j;
  return (kv <= q) && j < kv_len;
}

// The same, of a block.
__device__ __forceinline__ auto pair_test(const ForwardParams& p, const Block& at) {
  return [&p, at](int row, int column) { return admits(p, at, row, column); };
}

// The work of a block of threads: neighbours share a head's keys, the last rows, which mostly see most, first.
__device__ __forceinline__ Block block_of(const ForwardParams& p, uint32_t work) {
  const uint32_t q_len = static_cast<uint32_t>(p.shape.q_len), blocks = (q_len + kTileQ - 1) / kTileQ;
  const uint32_t heads = static_cast<uint32_t>(p.shape.heads);
  const int32_t i = static_cast<int32_t>(blocks - 1 - work % blocks) * kTileQ;
  work /= blocks;
  const int32_t left = static_cast<int32_t>(q_len) - i, rows = left < kTileQ ? left : kTileQ;
  return {static_cast<int32_t>(work / heads), static_cast<int32_t>(work % heads), i, rows, 0};
}

// What makes scores exponents of weights.
__device__ __forceinline__ Scale scale_of(const ForwardParams& p) { return {1.0f, kLog2e, 0.0f}; }

// The part of a block that a warp has.
__device__ __forceinline__ Block warp_part(Block at) {
  const int row = warp_id() * kWarpRows;
  at.rows = at.rows - row < kWarpRows ? at.rows - row : kWarpRows;
  at.i += row;
  return at;
}

// What is computed once of a block and needed now and then. It lies in shared memory: registers are for sums.
class Notes {
 public:
  using Source = RowsOf<Element::Type>;

  __device__ __forceinline__ explicit Notes(uint32_t shared) : shared_(shared) {}

  // One thread writes for all.
  __device__ __forceinline__ void write(const Block& block, const Source& k, const Source& v) const {
    if (threadIdx.x != 0) return;
    ptx::st_shared_16(shared_, make_uint4(block.b, block.h, block.i, block.rows));
    ptx::st_shared_2x8(shared_ + 16, reinterpret_cast<uint64_t>(k.data), reinterpret_cast<uint64_t>(v.data));
  }
  __device__ __forceinline__ Block block() const {
    const uint4 x = ptx::ld_shared_16(shared_);
    return {static_cast<int>(x.x), static_cast<int>(x.y), static_cast<int>(x.z), static_cast<int>(x.w), 0};
  }
  __device__ __forceinline__ Source keys(const TensorView& k) const { return Source::at(k, ptx::ld_shared_8(shared_ + 16)); }
  __device__ __forceinline__ Source values(const TensorView& v) const { return Source::at(v, ptx::ld_shared_8(shared_ + 24)); }

 private:
  uint32_t shared_;
};

// The tile at key j.
__device__ __forceinline__ Block at_key(Block at, int j) {
  at.j = j;
  return at;
}

// Asks the mask for tiles of a block, if none is known.
__device__ __forceinline__ void find_tiles(const ForwardParams& p, const Block& block, Tiles<kWarps>& tiles) {
  const Block part = warp_part(block);
  const auto below = [&](int tile) {
    const KeyRange keys = keys_below(p, block, tile * kTileKv);
    return KeyRange{keys.first / kTileKv, (keys.last + kTileKv - 1) / kTileKv};
  };
  tiles.find(part.rows <= 0, below, [&](int tile) { return tile_test(p, at_key(part, tile * kTileKv)); });
}

// Sums of the rows of a block, in the state of `softmax`.
__device__ __forceinline__ void attend(const ForwardParams& p, const Block& block, uint32_t q_shared,
                                       Softmax<kRowTiles>& softmax, Sums& o) {
  const uint32_t k_shared = q_shared + kQBytes, v_shared = k_shared + kStages * kKBytes;
  const int32_t group = static_cast<int32_t>(p.shape.heads) / static_cast<int32_t>(p.shape.kv_heads);
  const int32_t hk = block.h / group;
  const auto k = RowsOf<Element::Type>::of(p.k, block.b, hk), v = RowsOf<Element::Type>::of(p.v, block.b, hk);
  const Notes notes(q_shared + kNotes);
  notes.write(block, k, v);
  const PhiloxKey key = dropout_key(p.dropout);
  const int kv_len = static_cast<int>(p.shape.kv_len);
  const int row = warp_id() * kWarpRows;
  const auto load_k = [&](const auto& k, int tile, int stage) {
    load_rows<HeadRows, kTileKv, kHeadDim, kThreads>(k_shared + stage * kKBytes, k, tile * kTileKv, kv_len);
    ptx::commit_copies();
  };
  const auto load_v = [&](const auto& v, int tile, int stage) {
    load_rows<ValueRows, kTileKv, kValueDim, kThreads>(v_shared + stage * kVBytes, v, tile * kTileKv, kv_len);
    ptx::commit_copies();
  };
  const uint32_t mask_shared = q_shared + kMask;
  Tiles<kWarps> tiles(mask_shared, (static_cast<int>(p.shape.kv_len) + kTileKv - 1) / kTileKv);
  SumsApart<kRowTiles, kKeyTiles, kValueTiles> apart;
  softmax.start();
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[r][n][e] = 0.0f;

  load_rows<HeadRows, kTileQ, kHeadDim, kThreads>(
      q_shared, RowsOf<Element::Type>::of(p.q, block.b, block.h), block.i, static_cast<int>(p.shape.q_len));
  ptx::commit_copies();  // a group of its own: a block without keys waits for it too
  find_tiles(p, block, tiles);
  int tile = tiles.take();
  if (tile >= 0) load_k(k, tile, 0);
  for (int stage = 0; tile >= 0; stage = 0) {
    const Admitted admitted = tiles.admitted(tile);
    if (tiles.wanting()) find_tiles(p, notes.block(), tiles);
    const int after = tiles.take();
    ptx::wait_for_copies<0>();
    ptx::sync_block();  // and nobody reads the last tile's values any more
    load_v(notes.values(p.v), tile, stage);
    Scores x;
    multiply_keys<Element, HeadRows>(x, q_shared, row, k_shared + stage * kKBytes);
    const uint32_t values = v_shared + stage * kVBytes;
    ptx::wait_for_copies<0>();
    // Where values may meet pairs that the mask excludes, those that are no finite numbers are left out of the product,
    // each by the thread that has copied it.
    bool nonfinite = false;
    if (admitted.all) {
      ptx::sync_block();
    } else {
      nonfinite = ptx::sync_block_or(remove_nonfinite<Element, ValueRows, kTileKv, kThreads>(values));
    }
    if (after >= 0) load_k(notes.keys(p.k), after, stage);  // nobody reads this tile's keys any more
    score(p, at_key(warp_part(notes.block()), tile * kTileKv), x);
    if (!admitted.own) exclude_pairs(x, pair_test(p, at_key(warp_part(notes.block()), tile * kTileKv)));
    // Weights are packed when they are dropped: o has lost them, totals have not.
    const auto drop = [&](uint32_t (&weights)[4], int rows, int keys) {
      const Block part = warp_part(notes.block());
      dropping(p.dropout, key, p.shape.heads, part.b, part.h, part.i).drop(weights, rows, tile * (kTileKv / 16) + keys);
    };
    if (nonfinite) apart.keep(x, tile * kTileKv);
    if (nonfinite) apart.drop(drop);
    const Scale scale = scale_of(p);
    softmax.rescale(x, o, scale);
    multiply_values<Element, ValueRows>(
        o, x, values, [&](float score, int r, int half) { return softmax.weight(score, r, half, scale); }, drop);
    if (nonfinite) {
      apart.add<Element>(notes.values(p.v), pair_test(p, at_key(warp_part(notes.block()), apart.first_key())));
    }
    tile = after;
  }
  ptx::wait_for_copies<0>();
  apart.join(o);
}

// Divides the sums by the totals and writes o and lse.
__device__ __forceinline__ void write_rows(const ForwardParams& p, uint32_t staging, const Softmax<kRowTiles>& softmax,
                                           Sums& o) {
  const Block block = Notes(staging + kNotes).block();
  const Block part = warp_part(block);
  const int lane = lane_id();
  float* const lse = p.lse + (static_cast<int64_t>(block.b) * p.shape.heads + block.h) * p.shape.q_len + part.i;
  staging += (part.i - block.i) * ValueRows::kBytes;
  const uint32_t place = staging + ValueRows::at(lane / 4, 0) + lane % 4 * 4;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = 16 * r + 8 * half + lane / 4;
      const float total = sum_of_row(softmax.total[r][half]);
      const float factor = total == 0.0f ? 0.0f : 1.0f / total;
      if (total == 0.0f) {
        // A row without keys is zeros, and so is one that all are shut out of, even if their values are no numbers.
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) o[r][n][2 * half] = 0.0f, o[r][n][2 * half + 1] = 0.0f;
      }
      limit_means<Element>(o[r], half, factor);
      const float share = factor * p.dropout.factor;
      if (lane % 4 == 0 && at < part.rows)
        lse[at] = total == 0.0f ? -kInfinity : (softmax.reference[r][half] * kLog2e + log2f(total)) * kLn2;
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n)
        ptx::st_shared_4(ValueRows::moved(place, 16 * r + 8 * half, n),
                         Element::pack(o[r][n][2 * half] * share, o[r][n][2 * half + 1] * share));
    }
  __syncwarp();
  store_rows<ValueRows, kWarpRows, kValueDim>(RowsOf<Element::Type>::of(p.o, block.b, block.h), part.i, part.rows,
                                              staging);
}

}  // namespace
}  // namespace fagen

extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_d64_t4_forward(const __grid_constant__ fagen::ForwardParams p) {
  using namespace fagen;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  Softmax<kRowTiles> softmax;
  Sums o;
  attend(p, block_of(p, blockIdx.x), shared, softmax, o);
  __syncthreads();  // the queries make room for o
  write_rows(p, shared, softmax, o);
}

// Adds up how the mask falls into tiles: total, full, partial, and of those the empty ones.
extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_d64_t4_tile_counts(const __grid_constant__ fagen::ForwardParams p, int64_t* counts) {
  using namespace fagen;
  const Block block = block_of(p, blockIdx.x);
  const int total = (static_cast<int>(p.shape.kv_len) + kTileKv - 1) / kTileKv;
  unsigned long long full = 0, partial = 0, empty = 0;
  __shared__ __align__(16) char memory[Tiles<kWarps>::kBytes];
  const uint32_t mask_shared = ptx::shared_address(memory);
  Tiles<kWarps> tiles(mask_shared, (static_cast<int>(p.shape.kv_len) + kTileKv - 1) / kTileKv);
  for (;;) {
  find_tiles(p, block, tiles);
    const int tile = tiles.take();
    if (tile < 0) break;
    if (tiles.admitted(tile).all) {
      ++full;
      continue;
    }
    ++partial;
    bool any = false;
#pragma unroll 1
    for (int pair = static_cast<int>(threadIdx.x); pair < block.rows * kTileKv; pair += kThreads) {
      any |= admits(p, at_key(block, tile * kTileKv), pair / kTileKv, pair % kTileKv);
    }
    empty += !__syncthreads_or(any);
  }
  if (threadIdx.x == 0) {
    auto* const sums = reinterpret_cast<unsigned long long*>(counts);
    atomicAdd(sums, static_cast<unsigned long long>(total));
    atomicAdd(sums + 1, full);
    atomicAdd(sums + 2, partial);
    atomicAdd(sums + 3, empty);
  }
}
