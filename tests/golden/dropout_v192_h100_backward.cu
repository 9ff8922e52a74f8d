// dropout_v192_h100, backward, of spec cards: rendered by fagen, do not edit.
// mask: causal
// score: s
#include "fagen/cuda/math.h"
#include "fagen/cuda/exclude_unrolled.h"
#include "fagen/cuda/dropout.h"
#include "fagen/cuda/coarse.h"
#include "fagen/cuda/fragment_rows.h"
#include "fagen/cuda/group_tiles.h"
#include "fagen/cuda/query_columns.h"
#include "fagen/cuda/ring.h"
#include "fagen/cuda/row_products.h"
#include "fagen/cuda/slabs.h"
#include "fagen/cuda/zeros.h"
#include "fagen/ptx/bulk.h"
#include "fagen/ptx/grid.h"
#include "fagen/ptx/tensor.h"
#include "fagen/ptx/warpgroup.h"

namespace fagen {
namespace {

using Element = Bf16;  // of q, k, v, o and their gradients in memory

constexpr int kHeadDim = 64;
constexpr int kValueDim = 192;
constexpr int kTileQ = 64;  // query rows of a tile
constexpr int kGroups = 2;  // warpgroups that multiply; one more feeds them
constexpr int kKeyGroups = 1;  // of 64 keys, which both have
constexpr int kQueryStages = 2;  // tiles of Q in shared memory
constexpr int kGradientStages = 2;  // and of dO
constexpr int kPlanned = 8;  // that are scheduled, those in shared memory among them

constexpr int kGroupKeys = 64;
constexpr int kTileKv = kGroupKeys * kKeyGroups;  // keys of a block of threads
constexpr int kThreads = 128 * (kGroups + 1);
constexpr int kQueryTiles = kTileQ / 8;
constexpr int kHeadTiles = kHeadDim / 8;
constexpr int kValueTiles = kValueDim / 8;

// Rows lie in shared memory in slabs of 64 elements, 128 bytes, the last one filled up with zeros.
constexpr int kSlabBytes = 128;
constexpr int kHeadSlabs = (kHeadDim + 63) / 64;
constexpr int kValueSlabs = (kValueDim + 63) / 64;
constexpr int kQBytes = kTileQ * kHeadSlabs * kSlabBytes;
constexpr int kDOBytes = kTileQ * kValueSlabs * kSlabBytes;
constexpr int kKBytes = kTileKv * kHeadSlabs * kSlabBytes;
constexpr int kVBytes = kTileKv * kValueSlabs * kSlabBytes;
constexpr int kSlopeBytes = kTileQ * kKeyGroups * kSlabBytes;  // of dS of a tile, in slabs of 64 keys
constexpr int kRowBytes = kTileQ * 4;  // of one number a query row

// dQ of a tile, transposed, in parts that the warpgroups have in turn: half of its rows.
constexpr int kDqRows = 32;
constexpr int kDqParts = 2;
constexpr int kDqFloats = 64 * kDqRows;
constexpr int kDqBytes = 4 * kDqFloats;
constexpr int kStagedSlabs = 1;  // of a warp's rows of dK or dV, on their way where dQ was

using Scores = float[1][kQueryTiles][4];  // transposed: rows are a warp's keys, columns the tile's queries

// Query rows [i, i + rows) of head h in batch b against keys [j, j + kGroupKeys).
struct Block {
  int32_t b, h, i, rows, j;
  static constexpr int32_t keys = kGroupKeys;
};

// Of scores that started at -lse / scale, weights, which are packed: of those kFirst to kLast - 1 by eight queries.
template <int kFirst, int kLast>
__device__ __forceinline__ void weigh(Scores& scores, float unit, uint32_t (&weights)[2 * kQueryTiles]) {
#pragma unroll
  for (int n = kFirst; n < kLast; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) scores[0][n][e] = ptx::ex2(scores[0][n][e] * unit);
    weights[2 * n] = Element::pack(scores[0][n][0], scores[0][n][1]);
    weights[2 * n + 1] = Element::pack(scores[0][n][2], scores[0][n][3]);
  }
}
// Whether the mask admits the pair at `row` and `column` of a block.
__device__ __forceinline__ bool admits(const BackwardParams& p, const Block& at, int row, int column) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const int32_t i = at.i + row;
  const int32_t q = i + kv_len - q_len;
  const int32_t j = at.j + column;
  const int32_t kv = j;
  return (kv <= q) && j < kv_len;
}

// x += keys · queries of 64 keys and 64 queries, 16 elements of each, both in shared memory.
__device__ __forceinline__ void multiply_queries(float (&x)[kQueryTiles][4], uint64_t keys, uint64_t queries) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 }, "
      "%32, %33, 1, 1, 1, 0, 0;"
      : "+f"(x[0][0]), "+f"(x[0][1]), "+f"(x[0][2]), "+f"(x[0][3]), "+f"(x[1][0]), "+f"(x[1][1]), "+f"(x[1][2]), "+f"(x[1][3]), "+f"(x[2][0]), "+f"(x[2][1]), "+f"(x[2][2]), "+f"(x[2][3]), "+f"(x[3][0]), "+f"(x[3][1]), "+f"(x[3][2]), "+f"(x[3][3]), "+f"(x[4][0]), "+f"(x[4][1]), "+f"(x[4][2]), "+f"(x[4][3]), "+f"(x[5][0]), "+f"(x[5][1]), "+f"(x[5][2]), "+f"(x[5][3]), "+f"(x[6][0]), "+f"(x[6][1]), "+f"(x[6][2]), "+f"(x[6][3]), "+f"(x[7][0]), "+f"(x[7][1]), "+f"(x[7][2]), "+f"(x[7][3])
      : "l"(keys), "l"(queries));
}

// dq (+)= K · dS of 64 columns of K, which is read across its rows, and 32 queries, 16 keys of each.
__device__ __forceinline__ void multiply_columns(float (&dq)[kDqRows / 8][4], uint64_t columns, uint64_t slopes,
                                                 uint32_t accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15 }, "
      "%16, %17, p, 1, 1, 1, 0; }"
      : "+f"(dq[0][0]), "+f"(dq[0][1]), "+f"(dq[0][2]), "+f"(dq[0][3]), "+f"(dq[1][0]), "+f"(dq[1][1]), "+f"(dq[1][2]), "+f"(dq[1][3]), "+f"(dq[2][0]), "+f"(dq[2][1]), "+f"(dq[2][2]), "+f"(dq[2][3]), "+f"(dq[3][0]), "+f"(dq[3][1]), "+f"(dq[3][2]), "+f"(dq[3][3])
      : "l"(columns), "l"(slopes), "r"(accumulate));
}

// sums += pairs · rows of 64 keys and all columns, 16 queries of each; the pairs are in registers.
__device__ __forceinline__ void add_rows(float (&sums)[kHeadTiles][4], const uint32_t* pairs, uint64_t rows) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 }, "
      "{ %32, %33, %34, %35 }, %36, 1, 1, 1, 1;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3])
      : "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]), "l"(rows));
}
__device__ __forceinline__ void add_rows(float (&sums)[kValueTiles][4], const uint32_t* pairs, uint64_t rows) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95 }, "
      "{ %96, %97, %98, %99 }, %100, 1, 1, 1, 1;"
      : "+f"(sums[0][0]), "+f"(sums[0][1]), "+f"(sums[0][2]), "+f"(sums[0][3]), "+f"(sums[1][0]), "+f"(sums[1][1]), "+f"(sums[1][2]), "+f"(sums[1][3]), "+f"(sums[2][0]), "+f"(sums[2][1]), "+f"(sums[2][2]), "+f"(sums[2][3]), "+f"(sums[3][0]), "+f"(sums[3][1]), "+f"(sums[3][2]), "+f"(sums[3][3]), "+f"(sums[4][0]), "+f"(sums[4][1]), "+f"(sums[4][2]), "+f"(sums[4][3]), "+f"(sums[5][0]), "+f"(sums[5][1]), "+f"(sums[5][2]), "+f"(sums[5][3]), "+f"(sums[6][0]), "+f"(sums[6][1]), "+f"(sums[6][2]), "+f"(sums[6][3]), "+f"(sums[7][0]), "+f"(sums[7][1]), "+f"(sums[7][2]), "+f"(sums[7][3]), "+f"(sums[8][0]), "+f"(sums[8][1]), "+f"(sums[8][2]), "+f"(sums[8][3]), "+f"(sums[9][0]), "+f"(sums[9][1]), "+f"(sums[9][2]), "+f"(sums[9][3]), "+f"(sums[10][0]), "+f"(sums[10][1]), "+f"(sums[10][2]), "+f"(sums[10][3]), "+f"(sums[11][0]), "+f"(sums[11][1]), "+f"(sums[11][2]), "+f"(sums[11][3]), "+f"(sums[12][0]), "+f"(sums[12][1]), "+f"(sums[12][2]), "+f"(sums[12][3]), "+f"(sums[13][0]), "+f"(sums[13][1]), "+f"(sums[13][2]), "+f"(sums[13][3]), "+f"(sums[14][0]), "+f"(sums[14][1]), "+f"(sums[14][2]), "+f"(sums[14][3]), "+f"(sums[15][0]), "+f"(sums[15][1]), "+f"(sums[15][2]), "+f"(sums[15][3]), "+f"(sums[16][0]), "+f"(sums[16][1]), "+f"(sums[16][2]), "+f"(sums[16][3]), "+f"(sums[17][0]), "+f"(sums[17][1]), "+f"(sums[17][2]), "+f"(sums[17][3]), "+f"(sums[18][0]), "+f"(sums[18][1]), "+f"(sums[18][2]), "+f"(sums[18][3]), "+f"(sums[19][0]), "+f"(sums[19][1]), "+f"(sums[19][2]), "+f"(sums[19][3]), "+f"(sums[20][0]), "+f"(sums[20][1]), "+f"(sums[20][2]), "+f"(sums[20][3]), "+f"(sums[21][0]), "+f"(sums[21][1]), "+f"(sums[21][2]), "+f"(sums[21][3]), "+f"(sums[22][0]), "+f"(sums[22][1]), "+f"(sums[22][2]), "+f"(sums[22][3]), "+f"(sums[23][0]), "+f"(sums[23][1]), "+f"(sums[23][2]), "+f"(sums[23][3])
      : "r"(pairs[0]), "r"(pairs[1]), "r"(pairs[2]), "r"(pairs[3]), "l"(rows));
}

// A tile of query rows that is needed: its first row, its head, its number among those of all heads, and what is to be known
// of it.
struct Note {
  static constexpr uint32_t kStop = 1 << 8;

  int32_t i, h, tile;
  // Bit g: no pair of warpgroup g is excluded. kStop: there is no tile.
  uint32_t flags;

  __device__ __forceinline__ bool is_stop() const { return (flags & kStop) != 0; }
};

// Barriers by name, of a warpgroup: where it waits, and others arrive.
struct Named {
  static constexpr int kOfDq = 128 + 32;  // threads: those of a warpgroup and of the warp that adds what it has of dQ
  static constexpr int kOfBoth = 256;     // of both warpgroups

  static __device__ __forceinline__ int dq_full(int group) { return 1 + group; }
  static __device__ __forceinline__ int dq_empty(int group) { return 3 + group; }
  // One for each of two places, which tiles take in turn.
  static __device__ __forceinline__ int slopes_full(int group, uint32_t place) { return 5 + 2 * group + static_cast<int>(place); }
  static __device__ __forceinline__ int slopes_empty(int group, uint32_t place) { return 9 + 2 * group + static_cast<int>(place); }
  static __device__ __forceinline__ int weights_full() { return 13; }
  static __device__ __forceinline__ int weights_empty() { return 14; }
};

// What is where in shared memory.
class Shared {
 public:
  static constexpr int kValues = kKBytes, kQueries = kValues + kVBytes, kGradients = kQueries + kQueryStages * kQBytes;
  static constexpr int kSlopes = kGradients + kGradientStages * kDOBytes, kDq = kSlopes + 2 * kSlopeBytes;
  static constexpr int kWeights = kDq + kGroups * kDqBytes, kKept = kWeights + 4 * kTileQ * kTileKv;
  // Weights, as the threads of one warpgroup hand them to those of the other.
  __device__ __forceinline__ uint32_t weights() const { return start_ + kWeights; }
  static constexpr int kStarts = kKept + KeptColumns<1, kQueryTiles>::kBytes;
  // And which of their pairs are kept.
  __device__ __forceinline__ uint32_t kept() const { return start_ + kKept; }
  static constexpr int kDeltas = kStarts + kQueryStages * kRowBytes, kBarriers = kDeltas + kGradientStages * kRowBytes;
  static constexpr int kPlans = kBarriers + 16 + Ring<kQueryStages>::kBytes + Ring<kGradientStages>::kBytes;
  static constexpr int kPlanBarriers = kPlans + 16 * kPlanned;
  static constexpr int kBytes = kPlanBarriers + Ring<kPlanned>::kBytes;
  static_assert(kDq % 1024 == 0 && kPlans % 16 == 0, "as swizzles and vectors ask for");

  __device__ __forceinline__ explicit Shared(uint32_t start) : start_(start) {}

  __device__ __forceinline__ uint32_t keys() const { return start_; }
  __device__ __forceinline__ uint32_t values() const { return start_ + kValues; }
  __device__ __forceinline__ uint32_t queries(uint32_t stage) const { return start_ + kQueries + stage * kQBytes; }
  __device__ __forceinline__ uint32_t gradients(uint32_t stage) const { return start_ + kGradients + stage * kDOBytes; }
  __device__ __forceinline__ uint32_t slopes(uint32_t place) const { return start_ + kSlopes + place * kSlopeBytes; }
  __device__ __forceinline__ uint32_t dq(int group) const { return start_ + kDq + group * kDqBytes; }
  // Of a tile's rows: where scores and dO · v start. They come with Q and dO.
  __device__ __forceinline__ uint32_t starts(uint32_t stage) const { return start_ + kStarts + stage * kRowBytes; }
  __device__ __forceinline__ uint32_t deltas(uint32_t stage) const { return start_ + kDeltas + stage * kRowBytes; }

  // Whether the tile is late: then its first row's scores start at 0, as all do; others that start at 0 have -0. By a warp.
  __device__ __forceinline__ bool is_late(uint32_t stage) const {
    return __shfl_sync(~0u, ptx::ld_shared_4(starts(stage)), 0) == 0;
  }

  __device__ __forceinline__ uint32_t keys_full() const { return start_ + kBarriers; }
  __device__ __forceinline__ uint32_t values_full() const { return start_ + kBarriers + 8; }
  __device__ __forceinline__ Ring<kQueryStages> of_queries() const { return {start_ + kBarriers + 16}; }
  __device__ __forceinline__ Ring<kGradientStages> of_gradients() const {
    return {start_ + kBarriers + 16 + Ring<kQueryStages>::kBytes};
  }
  __device__ __forceinline__ Ring<kPlanned> of_plans() const { return {start_ + kPlanBarriers}; }

  __device__ __forceinline__ void note(uint32_t number, const Note& tile) const {
    ptx::st_shared_16(start_ + kPlans + 16 * number, make_uint4(tile.i, tile.h, tile.tile, tile.flags));
  }
  __device__ __forceinline__ Note note(uint32_t number) const {
    const uint4 x = ptx::ld_shared_16(start_ + kPlans + 16 * number);
    return {static_cast<int32_t>(x.x), static_cast<int32_t>(x.y), static_cast<int32_t>(x.z), x.w};
  }

 private:
  uint32_t start_;
};
static_assert(Shared::kBytes == 149328, "what the launch asks for");

// Query heads that share a key head.
__device__ __forceinline__ int32_t heads_of_group(const BackwardParams& p) {
  return static_cast<int32_t>(p.shape.heads / p.shape.kv_heads);
}
__device__ __forceinline__ int32_t query_tiles(const BackwardParams& p) {
  return (static_cast<int32_t>(p.shape.q_len) + kTileQ - 1) / kTileQ;
}
__device__ __forceinline__ int32_t key_tiles(const BackwardParams& p) {
  return (static_cast<int32_t>(p.shape.kv_len) + kTileKv - 1) / kTileKv;
}

// Keys of a key head, that a block of threads has: from j on.
struct KeyBlock {
  int32_t b, hk, j;
};
// One of them, of sections of `held` heads, of which the first keys come first.
__device__ __forceinline__ KeyBlock key_block_of(const BackwardParams& p, uint32_t work, uint32_t held) {
  const uint32_t tiles = static_cast<uint32_t>(key_tiles(p)), kv_heads = static_cast<uint32_t>(p.shape.kv_heads);
  const uint32_t all = kv_heads * static_cast<uint32_t>(p.shape.batch);
  const uint32_t first = work / (tiles * held) * held, rest = work - first * tiles;
  const uint32_t some = all - first < held ? all - first : held, head = first + rest % some;
  return {static_cast<int32_t>(head / kv_heads), static_cast<int32_t>(head % kv_heads),
          static_cast<int32_t>(rest / some) * kTileKv};
}
// Sections are of heads whose queries, and what belongs to them, the second-level cache holds. The first keys mostly are seen
// most: what is left at the end is short.
__device__ __forceinline__ KeyBlock key_block(const BackwardParams& p, uint32_t work) {
  constexpr int64_t kCache = 33554432, kQueryBytes = 2 * (kHeadDim + kValueDim) + 4 * kHeadDim;
  const int64_t fit = kCache / (kQueryBytes * heads_of_group(p) * greatest(p.shape.q_len, 1));
  return key_block_of(p, work, static_cast<uint32_t>(greatest(least(fit, p.shape.kv_heads * p.shape.batch), 1)));
}

// What the kernels before this one leave for it, and this one for that after it.
struct Work {
  // Of each query row, in the order in which lanes take them: -lse / scale, where scores start; and -delta, where dO · v starts.
  // Rows past the end have weights of 0.
  float *starts, *deltas;
  float* dq;  // zeros, and then of each tile its parts, in the order in which threads hold them
  // In a tile that is late (see is_late) all scores start at 0: what is subtracted behind products, and added to exponents.
  float *lse, *gaps;
  TileWord<kKeyGroups>* tiles;  // that the mask does not rule out, by blocks of keys

  __device__ __forceinline__ explicit Work(const BackwardParams& p) {
    starts = static_cast<float*>(p.notes);
    deltas = starts + p.shape.batch * p.shape.heads * query_tiles(p) * kTileQ;
    dq = p.dq_sums;
    lse = deltas + (deltas - starts), gaps = lse + (deltas - starts);
    tiles = static_cast<TileWord<kKeyGroups>*>(p.workspace);
  }
};

// Of a block's pairs, what the mask admits.
__device__ __forceinline__ Tri mask_test(const BackwardParams& p, const Block& at) {
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
__device__ __forceinline__ Tri tile_test(const BackwardParams& p, const Block& at) {
  if (at.j >= p.shape.kv_len) return Tri::kNone;
  const Tri admitted = mask_test(p, at);
  return at.j + at.keys > p.shape.kv_len ? admitted & Tri::kSome : admitted;
}

// Where a block's words are, one for 32 tiles of queries of a head: rows of blocks of each batch entry.
__device__ __forceinline__ int32_t tile_words(const BackwardParams& p) { return (query_tiles(p) + 31) / 32; }
__device__ __forceinline__ TileWord<kKeyGroups>* tiles_of(const BackwardParams& p, const Work& work, const KeyBlock& block,
                                                       int32_t h) {
  return work.tiles + (static_cast<int64_t>(block.b) * key_tiles(p) + block.j / kTileKv) * tile_words(p);
}

// Scores of a tile start at 0 where -lse / scale may be no float32, and where that counts.
__device__ __forceinline__ bool is_late(const BackwardParams& p, float lse) {
  return fabsf(p.scale) < 0x1p-60f || is_coarse(lse);
}

// A pair's exponent, but for what rounding lse left out of it. By a warp.
struct Exponent {
  bool admitted;
  float x, slope;  // the slope of what the score becomes
};
__device__ __noinline__ Exponent exponent_of(const BackwardParams& p, const Block& at) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const float lse = p.lse[(at.b * p.shape.heads + at.h) * p.shape.q_len + at.i];
  const int32_t i = at.i;
  const int32_t q = i + kv_len - q_len;
  const int32_t j = at.j;
  const int32_t kv = j;
  const float product = product_of_rows<Element, kHeadDim>(RowsOf<Element::Type>::of(p.q, at.b, at.h), at.i,
                                                           RowsOf<Element::Type>::of(p.k, at.b, at.h / heads_of_group(p)), at.j);
  if (!((kv <= q) && j < kv_len) || lse == -kInfinity) return {};
  return {true, fmaf(product, p.scale, -lse) * kLog2e, 1.0f};
}

// What rounding left out of a row's exponents: by the sum of its weights, which is to be 1. No more than rounding can have
// moved it: one that other keys have a part in is not of these alone. By a warp.
__device__ __noinline__ float gap_of_row(const BackwardParams& p, const Block& at, float lse) {
  float sum = 0.0f;
#pragma unroll 1
  for (int32_t j = 0; j < p.shape.kv_len; ++j)
    if (const Exponent exponent = exponent_of(p, {at.b, at.h, at.i, 1, j}); exponent.admitted) sum += ptx::ex2(exponent.x);
  const float gap = -log2f(sum);
  return fabsf(gap) <= 0x1p-21f * fabsf(lse) ? gap : 0.0f;
}

// Exponents of a late tile, the number of which is `tile`.
__device__ __forceinline__ void add_late(const BackwardParams& p, Scores& x, int32_t tile) {
  const int64_t first = int64_t{tile} * kTileQ + 4 * (lane_id() % 4);
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const int64_t place = first + n / 2 * 16 + n % 2 * 2;
    const float2 lse = *reinterpret_cast<const float2*>(Work(p).lse + place), gap = *reinterpret_cast<const float2*>(Work(p).gaps + place);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      x[0][n][e] = fmaf(fmaf(x[0][n][e], p.scale, e % 2 == 0 ? -lse.x : -lse.y), kLog2e, e % 2 == 0 ? gap.x : gap.y);
  }
}

// Blocks of keys of all key heads. Of the counters each has one that says whether its sums were no finite numbers, then
// there is one of drawn work, then each block has those of its turns.
__device__ __forceinline__ uint32_t key_blocks(const BackwardParams& p) {
  return static_cast<uint32_t>(p.shape.batch * p.shape.kv_heads) * static_cast<uint32_t>(key_tiles(p));
}
// Whether sums of a block were no finite numbers.
__device__ __forceinline__ uint32_t& lost_of(const BackwardParams& p, const KeyBlock& block) {
  return p.turns[(block.b * p.shape.kv_heads + block.hk) * key_tiles(p) + block.j / kTileKv];
}

// What follows is run where sums came out that are no finite numbers. Such numbers in a row may have met pairs that the mask
// keeps it from, 0 times NaN being NaN: all is computed again, pair by pair, and of pairs that are excluded nothing.

// A pair, by a warp: its weight, and d loss / d s.
struct Pair {
  bool admitted;
  float weight, slope;
};
__device__ __noinline__ Pair pair_of(const BackwardParams& p, const Block& at) {
  const Exponent exponent = exponent_of(p, at);
  if (!exponent.admitted) return {};
  const float product = product_of_rows<Element, kValueDim>(RowsOf<Element::Type>::of(p.d_o, at.b, at.h), at.i,
                                                            RowsOf<Element::Type>::of(p.v, at.b, at.h / heads_of_group(p)), at.j);
  const int64_t row = (at.b * p.shape.heads + at.h) * query_tiles(p) * kTileQ + place_of_row(at.i);
  const float weight = ptx::ex2(exponent.x + Work(p).gaps[row]);
  const bool kept = keeps_pair(p.dropout, at.b * p.shape.heads + at.h, at.i, at.j);
  const float slope = ((kept ? product : 0.0f) + Work(p).deltas[row]) * p.dropout.factor;
  return {true, kept ? weight : 0.0f, weight * exponent.slope * slope};
}

// A lane's columns of a row.
template <int kDim>
struct Columns {
  float sums[(kDim + 31) / 32] = {};

  __device__ __forceinline__ void add(float factor, const TensorView& view, int32_t b, int32_t h, int32_t row) {
    const auto rows = RowsOf<Element::Type>::of(view, b, h);
#pragma unroll
    for (int n = 0; n < (kDim + 31) / 32; ++n)
      if (const int d = 32 * n + lane_id(); d < kDim)
        sums[n] += factor * Element::value(reinterpret_cast<const uint16_t*>(rows.data + row * rows.stride)[d * rows.stride_d]);
  }
  __device__ __forceinline__ void write(float factor, const TensorView& view, int32_t b, int32_t h, int32_t row) const {
    const auto rows = RowsOf<Element::Type>::of(view, b, h);
#pragma unroll
    for (int n = 0; n < (kDim + 31) / 32; ++n)
      if (const int d = 32 * n + lane_id(); d < kDim)
        reinterpret_cast<uint16_t*>(rows.data + row * rows.stride)[d * rows.stride_d] =
            static_cast<uint16_t>(Element::pack(sums[n] * factor, 0.0f));
  }
};

__device__ __forceinline__ void mend_query(const BackwardParams& p, int32_t b, int32_t h, int32_t i) {
  Columns<kHeadDim> dq;
#pragma unroll 1
  for (int32_t j = 0; j < p.shape.kv_len; ++j) {
    const Pair pair = pair_of(p, {b, h, i, 1, j});
    if (pair.admitted) dq.add(pair.slope, p.k, b, h / heads_of_group(p), j);
  }
  dq.write(p.scale, p.dq, b, h, i);
}

__device__ __forceinline__ void mend_key(const BackwardParams& p, int32_t b, int32_t hk, int32_t j) {
  Columns<kHeadDim> dk;
  Columns<kValueDim> dv;
#pragma unroll 1
  for (int32_t h = hk * heads_of_group(p); h < (hk + 1) * heads_of_group(p); ++h)
#pragma unroll 1
    for (int32_t i = 0; i < p.shape.q_len; ++i) {
      const Pair pair = pair_of(p, {b, h, i, 1, j});
      if (!pair.admitted) continue;
      dk.add(pair.slope, p.q, b, h, i);
      dv.add(pair.weight, p.d_o, b, h, i);
    }
  dk.write(p.scale, p.dk, b, hk, j);
  dv.write(p.dropout.factor, p.dv, b, hk, j);
}

// A warp that says which tiles of queries are needed, in which order, a few ahead of the copies.
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(const BackwardParams& p, const Shared& shared, const KeyBlock& block)
      : p_(p), shared_(shared), block_(block) {}

  __device__ __forceinline__ void run() {
    const int32_t group = heads_of_group(p_), first = block_.hk * group;
    for (int32_t h = first; h < first + group; ++h) {
      const int32_t before = (block_.b * static_cast<int32_t>(p_.shape.heads) + h) * query_tiles(p_);
      StoredTiles<kKeyGroups> tiles(tiles_of(p_, Work(p_), block_, h), tile_words(p_));
      for (TileFound found = tiles.take(); found.tile >= 0; found = tiles.take())
        put({found.tile * kTileQ, h, before + found.tile, found.flags});
    }
    put({0, 0, 0, Note::kStop});
  }

 private:
  __device__ __forceinline__ void put(const Note& note) {
    shared_.of_plans().wait_empty(plans_);
    if (lane_id() == 0) {
      shared_.note(plans_.stage(), note);
      ptx::mbarrier_arrive(shared_.of_plans().full(plans_.stage()));
    }
    __syncwarp();
    plans_.next();
  }

  const BackwardParams& p_;
  const Shared shared_;
  const KeyBlock block_;
  Turn<kPlanned> plans_;
};

// A thread that has planned tiles copied, and before them the keys and values, which stay.
class Feeder {
 public:
  __device__ __forceinline__ Feeder(const BackwardParams& p, const ptx::TensorMap& q, const ptx::TensorMap& k,
                                    const ptx::TensorMap& v, const ptx::TensorMap& d_o, const Shared& shared,
                                    const KeyBlock& block)
      : p_(p), q_(q), k_(k), v_(v), d_o_(d_o), shared_(shared), block_(block) {}

  // What is needed first comes first.
  __device__ __forceinline__ void run() {
    Note tile = take();
    if (tile.is_stop()) return;
    ptx::mbarrier_arrive_expect(shared_.keys_full(), kKBytes);
    copy_rows<kHeadDim>(shared_.keys(), kTileKv, k_, shared_.keys_full(), block_.j, block_.hk, block_.b);
    send_queries(tile);
    ptx::mbarrier_arrive_expect(shared_.values_full(), kVBytes);
    copy_rows<kValueDim>(shared_.values(), kTileKv, v_, shared_.values_full(), block_.j, block_.hk, block_.b);
    send_gradients(tile);
    for (tile = take(); !tile.is_stop(); tile = take()) {
      send_queries(tile);
      send_gradients(tile);
    }
  }

 private:
  __device__ __forceinline__ Note take() {
    shared_.of_plans().wait_full(plans_);
    const Note tile = shared_.note(plans_.stage());
    plans_.next();
    return tile;
  }

  __device__ __forceinline__ void send_queries(const Note& tile) {
    const uint32_t stage = queries_.stage(), full = shared_.of_queries().full(stage);
    shared_.of_queries().wait_empty(queries_);
    ptx::mbarrier_arrive_expect(full, kQBytes + kRowBytes);
    copy_rows<kHeadDim>(shared_.queries(stage), kTileQ, q_, full, tile.i, tile.h, block_.b);
    ptx::copy_bulk(shared_.starts(stage), Work(p_).starts + int64_t{tile.tile} * kTileQ, kRowBytes, full);
    queries_.next();
  }
  __device__ __forceinline__ void send_gradients(const Note& tile) {
    const uint32_t stage = gradients_.stage(), full = shared_.of_gradients().full(stage);
    shared_.of_gradients().wait_empty(gradients_);
    ptx::mbarrier_arrive_expect(full, kDOBytes + kRowBytes);
    copy_rows<kValueDim>(shared_.gradients(stage), kTileQ, d_o_, full, tile.i, tile.h, block_.b);
    ptx::copy_bulk(shared_.deltas(stage), Work(p_).deltas + int64_t{tile.tile} * kTileQ, kRowBytes, full);
    gradients_.next();
  }

  const BackwardParams& p_;
  const ptx::TensorMap &q_, &k_, &v_, &d_o_;
  const Shared shared_;
  const KeyBlock block_;
  Turn<kPlanned> plans_;
  Turn<kQueryStages> queries_;
  Turn<kGradientStages> gradients_;
};

// A warp that has what a warpgroup has of dQ added to that of other blocks, in memory. It is the last that needs to
// know which tile that is of.
class Adder {
 public:
  __device__ __forceinline__ Adder(const BackwardParams& p, const Shared& shared, int group)
      : p_(p), shared_(shared), group_(group) {}

  __device__ __forceinline__ void run() {
    ptx::arrive_named<Named::kOfDq>(Named::dq_empty(group_));
    for (;; plans_.next()) {
      shared_.of_plans().wait_full(plans_);
      const Note tile = shared_.note(plans_.stage());
      if (tile.is_stop()) break;
      float* const dq = Work(p_).dq + int64_t{tile.tile} * kDqParts * kDqFloats;
#pragma unroll 1
      for (int part = group_; part < kDqParts; part += kGroups) {
        ptx::sync_named<Named::kOfDq>(Named::dq_full(group_));
        if (lane_id() == 0) {
          ptx::add_bulk(dq + part * kDqFloats, shared_.dq(group_), kDqBytes);
          ptx::commit_bulk();
          ptx::wait_for_bulk_reads<0>();
        }
        __syncwarp();
        ptx::arrive_named<Named::kOfDq>(Named::dq_empty(group_));
      }
      if (lane_id() == 0) ptx::mbarrier_arrive(shared_.of_plans().empty(plans_.stage()));
      __syncwarp();
    }
    if (lane_id() == 0) ptx::wait_for_bulk<0>();
  }

 private:
  const BackwardParams& p_;
  const Shared shared_;
  const int group_;
  Turn<kPlanned> plans_;
};

// What the two warpgroups have in common that multiply the same 64 keys with tile after tile of queries, where no one's
// registers hold sums of both dK and dV: one has scores and dV, the other dO · v and dK, and each its parts of dQ. dQ of a tile
// is the next one's affair: by then dS is there, and nobody has waited for it.
class WideMultiplier {
 protected:
  __device__ __forceinline__ WideMultiplier(const BackwardParams& p, const Shared& shared, const KeyBlock& block, int group)
      : p_(p), shared_(shared), block_(block), group_(group) {}

  // The next tile that is planned.
  __device__ __forceinline__ Note peek() const {
    shared_.of_plans().wait_full(plans_);
    Note note = shared_.note(plans_.stage());
    note.flags = __shfl_sync(~0u, note.flags, 0);  // one for all lanes, which the compiler does not know
    return note;
  }

  // x += keys or values · a tile's rows of queries or dO.
  template <int kDim>
  __device__ __forceinline__ void multiply_rows(float (&x)[kQueryTiles][4], uint32_t keys, uint32_t queries) const {
    const uint64_t a = ptx::rows_operand(keys), b = ptx::rows_operand(queries);
#pragma unroll
    for (int d = 0; d < (kDim + 15) / 16; ++d)
      multiply_queries(x, a + ((d / 4 * kTileKv * kSlabBytes + d % 4 * 32) >> 4),
                       b + ((d / 4 * kTileQ * kSlabBytes + d % 4 * 32) >> 4));
    ptx::commit_products();
  }

  // sums += pairs · rows of queries or dO.
  template <int kTiles>
  __device__ __forceinline__ void add_rows(float (&sums)[kTiles][4], const uint32_t (&pairs)[2 * kQueryTiles], uint32_t rows) const {
    const uint64_t b = ptx::columns_operand(rows, kTileQ * kSlabBytes);
    ptx::fence_products();
#pragma unroll
    for (int n = 0; n < kTileQ / 16; ++n) fagen::add_rows(sums, pairs + 4 * n, b + n * (16 * kSlabBytes >> 4));
    ptx::commit_products();
  }

  // Zeros for weights that are dropped, before they meet dO.
  template <int kFirst, int kLast>
  __device__ __forceinline__ void keep_weights(const KeptColumns<1, kQueryTiles>& kept, uint32_t (&weights)[2 * kQueryTiles]) const {
#pragma unroll
    for (int n = kFirst; n < kLast; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        weights[2 * n + half] &= (kept.kept(half, n, 0) ? 0xffffu : 0u) | (kept.kept(half, n, 1) ? 0xffff0000u : 0u);
  }

  // dO · v - δ of what is kept and -δ of what is not, both of which came divided by the factor of what is kept.
  template <int kFirst, int kLast>
  __device__ __forceinline__ void keep_slopes(const KeptColumns<1, kQueryTiles>& kept, float (&dp)[kQueryTiles][4], uint32_t stage) const {
#pragma unroll
    for (int n = kFirst; n < kLast; ++n) {
      const float4 of = numbers_of_columns(shared_.deltas(stage), n / 2);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float dropped = n % 2 == 0 ? (e % 2 == 0 ? of.x : of.y) : (e % 2 == 0 ? of.z : of.w);
        dp[n][e] = (kept.kept(e / 2, n, e % 2) ? dp[n][e] : dropped) * p_.dropout.factor;
      }
    }
  }

  // This warpgroup's parts of dQ of the tile whose dS lies in `place`, handed to the warp that adds them.
  __device__ __forceinline__ void add_dq(uint32_t place) const {
#pragma unroll 1
    for (int part = group_; part < kDqParts; part += kGroups) {
      float dq[kDqRows / 8][4];
      const uint64_t a = ptx::columns_operand(shared_.keys(), kTileKv * kSlabBytes);
      const uint64_t b = ptx::rows_operand(shared_.slopes(place) + part * kDqRows * kSlabBytes);
      ptx::fence_products();
#pragma unroll
      for (int n = 0; n < kTileKv / 16; ++n) multiply_columns(dq, a + n * (16 * kSlabBytes >> 4), b + (n * 32 >> 4), n > 0);
      ptx::commit_products();
      ptx::wait_for_products<0>();
      ptx::settle(dq);
      ptx::sync_named<Named::kOfDq>(Named::dq_empty(group_));
      store_sums(shared_.dq(group_), dq);
      ptx::fence_proxy();
      ptx::arrive_named<Named::kOfDq>(Named::dq_full(group_));
    }
  }

  // A tile of queries, or of dO, is not needed any more.
  template <int kStages>
  __device__ __forceinline__ void release(const Ring<kStages>& ring, Turn<kStages>& turn) const {
    __syncwarp();
    ptx::mbarrier_arrive_if(lane_id() == 0, ring.empty(turn.stage()));
    turn.next();
  }

  // The warp's rows of dK or dV, times `factor`, when what was staged has been added, and the place is free.
  template <int kTiles>
  __device__ __forceinline__ void write(const TensorView& view, float factor, const float (&sums)[kTiles][4]) const {
    ptx::sync_named<Named::kOfDq>(Named::dq_empty(group_));
    const int32_t j = block_.j + warp_id() % 4 * 16, left = static_cast<int32_t>(p_.shape.kv_len) - j;
    const float factors[2] = {factor, factor};
    const bool finite = store_fragments<Element, kStagedSlabs>(
        RowsOf<Element::Type>::of(view, block_.b, block_.hk), j, left < 16 ? left : 16,
        shared_.dq(group_) + warp_id() % 4 * kStagedSlabs * kStagedBytes, sums, factors);
    if (!finite) atomicOr(&lost_of(p_, block_), 1u);
  }

  const BackwardParams& p_;
  const Shared shared_;
  const KeyBlock block_;
  const int group_;
  Turn<kPlanned> plans_;
  Turn<kQueryStages> queries_;
  Turn<kGradientStages> gradients_;
};

// Scores, weights and dV. It runs ahead of the other, which takes its weights.
class ValueMultiplier : WideMultiplier {
 public:
  __device__ __forceinline__ ValueMultiplier(const BackwardParams& p, const Shared& shared, const KeyBlock& block)
      : WideMultiplier(p, shared, block, 0) {}

  __device__ __forceinline__ void run() {
    float dv[kValueTiles][4] = {};
    ptx::arrive_named<Named::kOfBoth>(Named::slopes_empty(1, 0));
    ptx::arrive_named<Named::kOfBoth>(Named::slopes_empty(1, 1));
    const Note first = peek();
    if (!first.is_stop()) multiply(first, dv);
    ptx::sync_named<Named::kOfBoth>(Named::weights_empty());  // as many waits as arrivals
    write(p_.dv, p_.dropout.factor, dv);
  }

 private:
  __device__ __forceinline__ void multiply(Note now, float (&dv)[kValueTiles][4]) {
    Scores s;
    uint32_t weights[2 * kQueryTiles];
    ptx::mbarrier_wait(shared_.keys_full(), 0);
    uint32_t place = 0;  // of dS
    for (bool begun = false;; begun = true, place ^= 1) {
      const uint32_t stage = queries_.stage();
      shared_.of_queries().wait_full(queries_);
      start_columns(s[0], shared_.starts(stage));
      ptx::fence_products();
      multiply_rows<kHeadDim>(s[0], shared_.keys(), shared_.queries(stage));
      const bool late = shared_.is_late(stage);
      const Block at = pairs_of(now);
      KeptColumns<1, kQueryTiles> kept;
      kept.draw(dropping(p_.dropout, key_, p_.shape.heads, at.b, at.h, at.i), at.j);
      plans_.next();
      const Note next = peek();  // while products are under way
      ptx::wait_for_products<0>();
      ptx::settle(s[0]);
      float unit = p_.scale * kLog2e;
      if (late) {
        add_late(p_, s, now.tile);
        unit = 1.0f;
      }
      if ((now.flags & 1) == 0) {
        if (unit < 0.0f) {  // so that those of pairs which are excluded can be -inf
          multiply_all(s[0], -1.0f);
          unit = -unit;
        }
        exclude_pairs_unrolled(s, [this, at = pairs_of(now)](int row, int column) { return admits(p_, at, column, row); });
      }
      weigh<0, kQueryTiles>(s, unit, weights);
      keep_weights<0, kQueryTiles>(kept, weights);
      ptx::sync_named<Named::kOfBoth>(Named::weights_empty());
      store_sums(shared_.weights(), s[0]);
      kept.store(shared_.kept());
      ptx::arrive_named<Named::kOfBoth>(Named::weights_full());
      shared_.of_gradients().wait_full(gradients_);
      add_rows(dv, weights, shared_.gradients(gradients_.stage()));
      release(shared_.of_queries(), queries_);
      ptx::wait_for_products<0>();
      release(shared_.of_gradients(), gradients_);
      if (begun) take_slopes(place ^ 1);
      if (next.is_stop()) break;
      now = next;
    }
    ptx::settle(dv);
    take_slopes(place);
  }

  __device__ __forceinline__ void take_slopes(uint32_t place) const {
    ptx::sync_named<Named::kOfBoth>(Named::slopes_full(0, place));
    add_dq(place);
    ptx::arrive_named<Named::kOfBoth>(Named::slopes_empty(1, place));
  }

  // The pairs of the warp's keys, from the first on.
  __device__ __forceinline__ Block pairs_of(const Note& note) const {
    return {block_.b, note.h, note.i, kTileQ, block_.j + warp_id() % 4 * 16};
  }

  const PhiloxKey key_ = dropout_key(p_.dropout);
};

// dO · v, dS and dK.
class KeyMultiplier : WideMultiplier {
 public:
  __device__ __forceinline__ KeyMultiplier(const BackwardParams& p, const Shared& shared, const KeyBlock& block)
      : WideMultiplier(p, shared, block, 1) {}

  __device__ __forceinline__ void run() {
    float dk[kHeadTiles][4] = {};
    ptx::arrive_named<Named::kOfBoth>(Named::weights_empty());
    if (!peek().is_stop()) multiply(dk);
    ptx::sync_named<Named::kOfBoth>(Named::slopes_empty(1, 0));  // as many waits as arrivals
    ptx::sync_named<Named::kOfBoth>(Named::slopes_empty(1, 1));
    write(p_.dk, p_.scale, dk);
  }

 private:
  __device__ __forceinline__ void multiply(float (&dk)[kHeadTiles][4]) {
    float dp[kQueryTiles][4];
    uint32_t slopes[2 * kQueryTiles];
    ptx::mbarrier_wait(shared_.values_full(), 0);
    uint32_t place = 0;  // of dS
    for (bool begun = false, more = true; more; begun = true, place ^= 1) {
      const uint32_t stage = gradients_.stage();
      shared_.of_gradients().wait_full(gradients_);
      start_columns(dp, shared_.deltas(stage));
      ptx::fence_products();
      multiply_rows<kValueDim>(dp, shared_.values(), shared_.gradients(stage));
      plans_.next();
      more = !peek().is_stop();  // while products are under way
      ptx::sync_named<Named::kOfBoth>(Named::weights_full());
      float weights[kQueryTiles][4];
      load_sums(weights, shared_.weights());
      KeptColumns<1, kQueryTiles> kept;
      kept.load(shared_.kept());
      ptx::arrive_named<Named::kOfBoth>(Named::weights_empty());
      ptx::wait_for_products<0>();
      ptx::settle(dp);
      keep_slopes<0, kQueryTiles>(kept, dp, stage);
      release(shared_.of_gradients(), gradients_);
      ptx::sync_named<Named::kOfBoth>(Named::slopes_empty(1, place));
      const uint32_t to = place_of_columns(shared_.slopes(place));
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        slopes[2 * n] = Element::pack(weights[n][0] * dp[n][0], weights[n][1] * dp[n][1]);
        slopes[2 * n + 1] = Element::pack(weights[n][2] * dp[n][2], weights[n][3] * dp[n][3]);
        if (n % 2 == 1) ptx::stmatrix_x4_trans(to + n / 2 * 16 * kSlabBytes, slopes + 2 * n - 2);
      }
      ptx::fence_proxy();  // products read them by another way
      ptx::arrive_named<Named::kOfBoth>(Named::slopes_full(0, place));
      shared_.of_queries().wait_full(queries_);
      add_rows(dk, slopes, shared_.queries(queries_.stage()));
      ptx::wait_for_products<0>();
      release(shared_.of_queries(), queries_);
      if (begun) add_dq(place ^ 1);
      ptx::sync_named<128>(Named::slopes_full(1, place));  // this tile's, of all of its warps
    }
    ptx::settle(dk);
    add_dq(place ^ 1);
  }
};

}  // namespace
}  // namespace fagen

extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_v192_h100_backward(const __grid_constant__ fagen::BackwardParams p, const __grid_constant__ fagen::ptx::TensorMap q,
                              const __grid_constant__ fagen::ptx::TensorMap k,
                              const __grid_constant__ fagen::ptx::TensorMap v,
                              const __grid_constant__ fagen::ptx::TensorMap d_o) {
  using namespace fagen;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(ptx::shared_address(memory));
  ptx::let_next_begin();
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(shared.keys_full(), 1);
    ptx::mbarrier_init(shared.values_full(), 1);
    shared.of_queries().make(1, 4 * kGroups);
    shared.of_gradients().make(1, 4 * kGroups);
    shared.of_plans().make(1, kGroups);
    ptx::fence_mbarrier_init();
  }
  ptx::wait_for_last();
  ptx::sync_block();
  const int warp = __shfl_sync(~0u, warp_id(), 0);
  const KeyBlock block = key_block(p, blockIdx.x);
  if (warp < 4) {
    ptx::give_up_registers<24>();
    if (warp == 0 && lane_id() == 0) Feeder(p, q, k, v, d_o, shared, block).run();
    if (warp == 1) Scheduler(p, shared, block).run();
    if (warp >= 2) Adder(p, shared, warp - 2).run();
  } else {
    ptx::take_registers<240>();
    if (warp < 8) {
      ValueMultiplier(p, shared, block).run();
    } else {
      KeyMultiplier(p, shared, block).run();
    }
  }
}

// Before it, a block of threads for each tile of queries: its rows' numbers, and zeros that dQ is added to.
extern "C" __global__ void __launch_bounds__(256)
    fagen_dropout_v192_h100_backward_prepare(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  ptx::let_next_begin();
  constexpr int kLanes = lanes_of_row(kValueDim), kRows = 256 / kLanes, kRounds = (kTileQ + kRows - 1) / kRows;
  constexpr int kAtOnce = kRounds < 4 ? kRounds : 4;  // rows that a lane has on their way
  __shared__ float products[kTileQ];
  const Work work(p);
  // Blocks that run at once have the same rows of all heads, which mostly are next to each other in memory.
  const int32_t tiles = query_tiles(p), heads = static_cast<int32_t>(p.shape.heads);
  const int32_t h = static_cast<int32_t>(blockIdx.x) % heads, rest = static_cast<int32_t>(blockIdx.x) / heads;
  const int32_t b = rest / tiles, i = rest % tiles * kTileQ, head = b * heads + h, tile = head * tiles + rest % tiles;
  const int32_t left = static_cast<int32_t>(p.shape.q_len) - i, rows = left < kTileQ ? left : kTileQ;
  const auto o = RowsOf<Element::Type>::of(p.o, b, h), d_o = RowsOf<Element::Type>::of(p.d_o, b, h);
  const int64_t first = head * p.shape.q_len + i, padded = int64_t{tile} * kTileQ;
  const int own = static_cast<int>(threadIdx.x), row_of_lanes = own / kLanes;
  const bool real = own < rows;
  const float lse = real ? p.lse[first + own] : -kInfinity, d_lse = real && p.d_lse != nullptr ? p.d_lse[first + own] : 0.0f;
  put_zeros<kDqParts * kDqFloats, 256>(work.dq + int64_t{tile} * kDqParts * kDqFloats);
  clear_counters(p, key_blocks(p));
  if (o.whole && d_o.whole) {
#pragma unroll 1
    for (int some = 0; some < kTileQ; some += kAtOnce * kRows) {
      const int row = some + row_of_lanes;
      RowPairs<Element, kValueDim, kAtOnce, kRows> pairs;
      pairs.load(o, d_o, i + row, rows - row);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const float product = pairs.product(n);
        if (const int at = row + n * kRows; lane_id() % kLanes == 0 && at < kTileQ) products[at] = product;
      }
    }
  } else {
#pragma unroll 1
    for (int row = row_of_lanes; row < kTileQ; row += kRows) {
      const int64_t at = i + (row < rows ? row : 0);
      const float product = product_of_rows<Element, kValueDim>(o, at, d_o, at);
      if (lane_id() % kLanes == 0) products[row] = product;
    }
  }
  const bool late = ptx::sync_block_or(real && is_late(p, lse));
  if (own < kTileQ) {
    const float product = products[own];
    const int64_t place = padded + place_of_row(own);
    const float noted = lse == -kInfinity ? kInfinity : lse;
    const float start = -noted / p.scale;
    work.starts[place] = late ? 0.0f : start == 0.0f ? -0.0f : start;  // 0 says that the tile is late
    work.lse[place] = noted;
    work.gaps[place] = 0.0f;
    work.deltas[place] = real ? (d_lse - product) / p.dropout.factor : 0.0f;
  }
  if (!late) return;
  ptx::sync_block();
#pragma unroll 1
  for (int row = warp_id(); row < kTileQ && row < left; row += 8) {
    const float lse = p.lse[first + row];
    if (!is_coarse(lse)) continue;
    const float gap = gap_of_row(p, {b, h, i + row, 1, 0}, lse);
    if (lane_id() == 0) work.gaps[padded + place_of_row(row)] = gap;
  }
}

// After it, for each tile of queries: rows of dQ, from the order in which threads held its sums.
extern "C" __global__ void __launch_bounds__(256, 1)
    fagen_dropout_v192_h100_backward_finish(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  ptx::wait_for_last();
  using Staged = Rows<64 * kHeadSlabs>;
  __shared__ __align__(128) char memory[kTileQ * Staged::kBytes];
  const uint32_t staged = ptx::shared_address(memory);
  // The last tiles first, which were added to last: of these the second-level cache still has some.
  const int32_t tiles = query_tiles(p), tile = static_cast<int32_t>(gridDim.x - 1 - blockIdx.x);
  const int32_t head = tile / tiles, heads = static_cast<int32_t>(p.shape.heads), b = head / heads, h = head % heads;
  const int32_t i = tile % tiles * kTileQ, left = static_cast<int32_t>(p.shape.q_len) - i;
  const int lane = lane_id();
  bool lost = false;  // whether sums were no finite numbers
  const auto put = [&](int at, int d, float x) {
    const uint16_t element = static_cast<uint16_t>(Element::pack(x * p.scale, 0.0f));
    ptx::st_shared_2(staged + Staged::at(at, d / 8) + d % 8 * 2, element);
    lost |= !Element::finite(element);
  };
#pragma unroll 1
  for (int part = warp_id() / 4; part < kDqParts; part += 2) {
    const auto* const sums = reinterpret_cast<const float4*>(Work(p).dq + (int64_t{tile} * kDqParts + part) * kDqFloats) +
                             warp_id() % 4 * (kDqRows / 8) * 32 + lane;
    const int column = warp_id() % 4 * 16 + lane / 4, row = kDqRows * part + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDqRows / 8; ++n) {
      const float4 x = sums[32 * n];
      put(row + 8 * n, column, x.x);
      put(row + 8 * n + 1, column, x.y);
      put(row + 8 * n, column + 8, x.z);
      put(row + 8 * n + 1, column + 8, x.w);
    }
  }
  if (ptx::sync_block_or(lost)) {
#pragma unroll 1
    for (int row = warp_id(); row < kTileQ && row < left; row += 8) mend_query(p, b, h, i + row);
    return;
  }
  const auto to = RowsOf<Element::Type>::of(p.dq, b, h);
#pragma unroll 1
  for (int some = 8 * warp_id(); some < kTileQ && some < left; some += 64)
    store_rows<Staged, 8, kHeadDim>(to, i + some, left - some < 8 ? left - some : 8, staged + some * Staged::kBytes);
}

// Mostly there is nothing to do: a few blocks of threads, whose warps look at the same 32 counters at a time. Those are far
// apart: of neighbours, which are often lost together, each block has one.
extern "C" __global__ void __launch_bounds__(256, 1) fagen_dropout_v192_h100_backward_mend(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  ptx::let_next_begin();
  ptx::wait_for_last();
  const uint32_t tiles = static_cast<uint32_t>(key_tiles(p)), kv_heads = static_cast<uint32_t>(p.shape.kv_heads);
  const uint32_t all = key_blocks(p), step = gridDim.x;
#pragma unroll 1
  for (uint32_t first = blockIdx.x; first < all; first += 32 * step) {
    const uint32_t own = first + lane_id() * step;
    uint32_t lost = __ballot_sync(~0u, own < all && p.turns[own] != 0);
#pragma unroll 1
    for (; lost != 0; lost &= lost - 1) {
      const uint32_t block = first + static_cast<uint32_t>(__ffs(static_cast<int>(lost)) - 1) * step, head = block / tiles;
      const int32_t b = static_cast<int32_t>(head / kv_heads), hk = static_cast<int32_t>(head % kv_heads);
      const int32_t j = static_cast<int32_t>(block % tiles) * kTileKv;
#pragma unroll 1
      for (int32_t at = j + warp_id(); at < j + kTileKv && at < p.shape.kv_len; at += 8) mend_key(p, b, hk, at);
    }
  }
}

// Finds what the mask admits of a block's keys, a warp for 8 tiles of queries and the keys of a warpgroup.
extern "C" __global__ void __launch_bounds__(32 * fagen::kFinders, 8)
    fagen_dropout_v192_h100_backward_find(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  ptx::let_next_begin();
  const Finder<kKeyGroups> finder(static_cast<uint32_t>(tile_words(p)));
  uint32_t work = finder.work;
  const uint32_t blocks = static_cast<uint32_t>(key_tiles(p));
  const int32_t j = static_cast<int32_t>(work % blocks) * kTileKv;
  work /= blocks;
  if (work >= static_cast<uint32_t>(p.shape.batch)) return;
  const int32_t b = static_cast<int32_t>(work), h = 0;
  finder.find(tiles_of(p, Work(p), {b, h / heads_of_group(p), j}, h), [&](int tile) {
    const int32_t i = tile * kTileQ, left = static_cast<int32_t>(p.shape.q_len) - i;
    const Block at{b, h, i, left < kTileQ ? left : kTileQ, j + kGroupKeys * finder.group};
    const Tri admitted = tile_test(p, at);  // by all lanes, which may read params together
    return left > 0 ? admitted : Tri::kNone;
  });
  ptx::wait_for_last();  // which it asks nothing of, for the kernel that waits for this one alone
}
