// learned_d192_h100, backward, of spec cards: rendered by fagen, do not edit.
// mask: none
// score: s + gain[b, hk, q] + dense[b, h, i, j]
#include "fagen/cuda/array.h"
#include "fagen/cuda/math.h"
#include "fagen/cuda/gradient.h"
#include "fagen/cuda/pair_sums.h"
#include "fagen/cuda/coarse.h"
#include "fagen/cuda/fragment_rows.h"
#include "fagen/cuda/group_tiles.h"
#include "fagen/cuda/query_columns.h"
#include "fagen/cuda/ring.h"
#include "fagen/cuda/row_products.h"
#include "fagen/cuda/slabs.h"
#include "fagen/ptx/bulk.h"
#include "fagen/ptx/tensor.h"
#include "fagen/ptx/warpgroup.h"

namespace fagen {
namespace {

using Element = Bf16;  // of q, k, v, o and their gradients in memory

constexpr int kHeadDim = 192;
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

// dQ of a tile, transposed, in parts that the warpgroups have in turn: 64 columns of all its rows.
constexpr int kDqRows = 64;
constexpr int kDqParts = 3;
constexpr int kDqFloats = 64 * kDqRows;
constexpr int kDqBytes = 4 * kDqFloats;
constexpr int kStagedSlabs = 2;  // of a warp's rows of dK or dV, on their way where dQ was

using Scores = float[1][kQueryTiles][4];  // transposed: rows are a warp's keys, columns the tile's queries

// Query rows [i, i + rows) of head h in batch b against keys [j, j + kGroupKeys).
struct Block {
  int32_t b, h, i, rows, j;
};

// Of q · k, weights, which are packed, and in their place weights times d x / d s. `numbers` are those of the tile's rows:
// their lse.
__device__ __forceinline__ void weigh_whole(const BackwardParams& p, const Block& at, uint32_t numbers, Scores& scores,
                                            uint32_t (&weights)[2 * kQueryTiles]) {
  const Array<const float, 3> gain_at(p.params[0]);
  const Array<const float, 4> dense_at(p.params[1]);
  const int32_t b = at.b;
  const int32_t h = at.h;
  const int32_t hk = static_cast<int32_t>(at.h / (p.shape.heads / p.shape.kv_heads));
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  int lane = lane_id();
  ptx::hide(lane);  // what is computed from it is computed where it is used, not all before
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const float4 of = numbers_of_columns(numbers, n / 2);
    float weight[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float lse = n % 2 == 0 ? (c == 0 ? of.x : of.y) : (c == 0 ? of.z : of.w);
      const int32_t i = at.i + 8 * n + 2 * (lane % 4) + c;
      const int32_t q = i + kv_len - q_len;
      const float gain_at_b_hk_q = gain_at.load(b, hk, q);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& score = scores[0][n][2 * row + c];
        const int32_t j = at.j + lane / 4 + 8 * row;
        const float s = score * p.scale;
        const float dense_at_b_h_i_j = dense_at.load(b, h, i, j);
        const bool admitted = lse != -kInfinity;
        const float exponent = __fsub_rn(s + gain_at_b_hk_q + dense_at_b_h_i_j, lse) * kLog2e;
        weight[row][c] = admitted ? ptx::ex2(exponent) : kExcluded;
        score = weight[row][c];
      }
    }
    weights[2 * n] = Element::pack(weight[0][0], weight[0][1]);
    weights[2 * n + 1] = Element::pack(weight[1][0], weight[1][1]);
  }
}
// `gaps` are what exponents of a coarse tile are added, nullptr for others.
__device__ __forceinline__ void weigh_mixed(const BackwardParams& p, const Block& at, uint32_t numbers, const float* gaps,
                                            Scores& scores, uint32_t (&weights)[2 * kQueryTiles]) {
  const Array<const float, 3> gain_at(p.params[0]);
  const Array<const float, 4> dense_at(p.params[1]);
  const int32_t b = at.b;
  const int32_t h = at.h;
  const int32_t hk = static_cast<int32_t>(at.h / (p.shape.heads / p.shape.kv_heads));
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  int lane = lane_id();
  ptx::hide(lane);  // what is computed from it is computed where it is used, not all before
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    const float4 of = numbers_of_columns(numbers, n / 2);
    const float2 gap = gaps == nullptr ? make_float2(0.0f, 0.0f) : *reinterpret_cast<const float2*>(gaps + n / 2 * 16 + n % 2 * 2);
    float weight[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float lse = n % 2 == 0 ? (c == 0 ? of.x : of.y) : (c == 0 ? of.z : of.w);
      const int32_t i = at.i + 8 * n + 2 * (lane % 4) + c;
      const int32_t q = i + kv_len - q_len;
      const float gain_at_b_hk_q = gain_at.load(b, hk, q);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float& score = scores[0][n][2 * row + c];
        const int32_t j = at.j + lane / 4 + 8 * row;
        const float s = score * p.scale;
        const float dense_at_b_h_i_j = dense_at.load(b, h, i, j);
        const bool admitted = lse != -kInfinity && j < kv_len;
        const float exponent = fmaf(__fsub_rn(s + gain_at_b_hk_q + dense_at_b_h_i_j, lse), kLog2e, c == 0 ? gap.x : gap.y);
        weight[row][c] = admitted ? ptx::ex2(exponent) : kExcluded;
        score = weight[row][c];
      }
    }
    weights[2 * n] = Element::pack(weight[0][0], weight[0][1]);
    weights[2 * n + 1] = Element::pack(weight[1][0], weight[1][1]);
  }
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

// dq (+)= K · dS of 64 columns of K, which is read across its rows, and 64 queries, 16 keys of each.
__device__ __forceinline__ void multiply_columns(float (&dq)[kDqRows / 8][4], uint64_t columns, uint64_t slopes,
                                                 uint32_t accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31 }, "
      "%32, %33, p, 1, 1, 1, 0; }"
      : "+f"(dq[0][0]), "+f"(dq[0][1]), "+f"(dq[0][2]), "+f"(dq[0][3]), "+f"(dq[1][0]), "+f"(dq[1][1]), "+f"(dq[1][2]), "+f"(dq[1][3]), "+f"(dq[2][0]), "+f"(dq[2][1]), "+f"(dq[2][2]), "+f"(dq[2][3]), "+f"(dq[3][0]), "+f"(dq[3][1]), "+f"(dq[3][2]), "+f"(dq[3][3]), "+f"(dq[4][0]), "+f"(dq[4][1]), "+f"(dq[4][2]), "+f"(dq[4][3]), "+f"(dq[5][0]), "+f"(dq[5][1]), "+f"(dq[5][2]), "+f"(dq[5][3]), "+f"(dq[6][0]), "+f"(dq[6][1]), "+f"(dq[6][2]), "+f"(dq[6][3]), "+f"(dq[7][0]), "+f"(dq[7][1]), "+f"(dq[7][2]), "+f"(dq[7][3])
      : "l"(columns), "l"(slopes), "r"(accumulate));
}

// sums += pairs · rows of 64 keys and all columns, 16 queries of each; the pairs are in registers.
__device__ __forceinline__ void add_rows(float (&sums)[kHeadTiles][4], const uint32_t* pairs, uint64_t rows) {
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
  static constexpr int kWeights = kDq + kGroups * kDqBytes, kStarts = kWeights + 4 * kTileQ * kTileKv;
  // Weights, as the threads of one warpgroup hand them to those of the other.
  __device__ __forceinline__ uint32_t weights() const { return start_ + kWeights; }
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
static_assert(Shared::kBytes == 214352, "what the launch asks for");

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
// One of them: neighbours share a head's queries.
__device__ __forceinline__ KeyBlock key_block(const BackwardParams& p, uint32_t work) {
  const uint32_t tiles = static_cast<uint32_t>(key_tiles(p)), kv_heads = static_cast<uint32_t>(p.shape.kv_heads);
  const uint32_t head = work / tiles;
  return {static_cast<int32_t>(head / kv_heads), static_cast<int32_t>(head % kv_heads),
          static_cast<int32_t>(work % tiles) * kTileKv};
}

// What the kernels before this one leave for it, and this one for that after it.
struct Work {
  // Of each query row, in the order in which lanes take them: lse; and -delta, where dO · v starts.
  // Rows past the end have weights of 0.
  float *starts, *deltas;
  float* dq;  // zeros, then of each tile its parts, in the order in which threads hold them
  float* gaps;  // what is added to exponents of a tile with a coarse row

  __device__ __forceinline__ explicit Work(const BackwardParams& p) {
    starts = static_cast<float*>(p.notes);
    deltas = starts + p.shape.batch * p.shape.heads * query_tiles(p) * kTileQ;
    dq = p.dq_sums;
    gaps = deltas + (deltas - starts);
  }
};

// Of which 64 keys none is past the end.
__device__ __forceinline__ uint32_t whole_groups(const BackwardParams& p, const KeyBlock& block) {
  uint32_t whole = 0;
#pragma unroll
  for (int group = 0; group < kKeyGroups; ++group)
    whole |= static_cast<uint32_t>(block.j + kGroupKeys * (group + 1) <= p.shape.kv_len) << group;
  return whole;
}

// Where that counts exponents have what it left out added.
__device__ __forceinline__ bool is_late(const BackwardParams&, float lse) { return is_coarse(lse); }

// Whether a tile, whose lse are in shared memory, has such a row. By a warp.
__device__ __forceinline__ bool is_coarse_tile(uint32_t lse) {
  bool found = false;
#pragma unroll
  for (int row = 0; row < kTileQ; row += 32)
    if (const int own = row + lane_id(); own < kTileQ) found |= is_coarse(__uint_as_float(ptx::ld_shared_4(lse + 4 * own)));
  return __any_sync(~0u, found);
}
// A lane's, of the tile with that number.
__device__ __forceinline__ const float* gaps_of(const BackwardParams& p, int32_t tile) {
  return Work(p).gaps + int64_t{tile} * kTileQ + 4 * (lane_id() % 4);
}

// A pair's exponent, but for what rounding lse left out of it. By a warp.
struct Exponent {
  bool admitted;
  float x, slope;  // the slope of what the score becomes
};
__device__ __noinline__ Exponent exponent_of(const BackwardParams& p, const Block& at) {
  const Array<const float, 3> gain_at(p.params[0]);
  const Array<const float, 4> dense_at(p.params[1]);
  const int32_t b = at.b;
  const int32_t h = at.h;
  const int32_t hk = static_cast<int32_t>(at.h / (p.shape.heads / p.shape.kv_heads));
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const float lse = p.lse[(at.b * p.shape.heads + at.h) * p.shape.q_len + at.i];
  const int32_t i = at.i;
  const int32_t q = i + kv_len - q_len;
  const float gain_at_b_hk_q = gain_at.load(b, hk, q);
  const int32_t j = at.j;
  const float product = product_of_rows<Element, kHeadDim>(RowsOf<Element::Type>::of(p.q, at.b, at.h), at.i,
                                                           RowsOf<Element::Type>::of(p.k, at.b, at.h / heads_of_group(p)), at.j);
  const float s = p.scale * product;
  const float dense_at_b_h_i_j = dense_at.load(b, h, i, j);
  if (!(j < kv_len) || lse == -kInfinity) return {};
  return {true, __fsub_rn(s + gain_at_b_hk_q + dense_at_b_h_i_j, lse) * kLog2e, 1.0f};
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

// A warp that says which tiles of queries are needed, in which order, a few ahead of the copies.
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(const BackwardParams& p, const Shared& shared, const KeyBlock& block)
      : p_(p), shared_(shared), block_(block) {}

  __device__ __forceinline__ void run() {
    const int32_t group = heads_of_group(p_), first = block_.hk * group;
    for (int32_t h = first; h < first + group; ++h) {
      const int32_t before = (block_.b * static_cast<int32_t>(p_.shape.heads) + h) * query_tiles(p_);
      for (TileFound found{0, whole_groups(p_, block_)}; found.tile < query_tiles(p_); ++found.tile)
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

// Adds to the gradient of gain, of the pairs of query `column`.
__device__ __forceinline__ void add_grad1(const BackwardParams& p, const Block& at, int column, float total) {
  const int32_t b = at.b;
  const int32_t hk = static_cast<int32_t>(at.h / (p.shape.heads / p.shape.kv_heads));
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Gradient<3> gain_at_grad(p.d_params[0]);
  const int32_t i = at.i + column;
  const int32_t q = i + kv_len - q_len;
  gain_at_grad.add(total, b, hk, q);
}

// Adds to the gradient of dense, of a pair.
__device__ __forceinline__ void add_grad2(const BackwardParams& p, const Block& at, int column, int key, float g) {
  const int32_t b = at.b;
  const int32_t h = at.h;
  const Gradient<4> dense_at_grad(p.d_params[1]);
  const int32_t i = at.i + column;
  const int32_t j = at.j + key;
  dense_at_grad.add(g, b, h, i, j);
}

// What a tile's pairs add to gradients of params.
__device__ __forceinline__ void sum_grads(const BackwardParams& p, const Block& at,
                                          const float (&weights)[kQueryTiles][4], const float (&dp)[kQueryTiles][4]) {
  int lane = lane_id();
  ptx::hide(lane);  // what is made of it is made again, rather than kept from tile to tile in as many registers
  ColumnSums<kQueryTiles> sum1(lane);
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n) {
    float sum1_of_pairs[2][2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int column = 8 * n + 2 * (lane % 4) + c;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int key = lane / 4 + 8 * row;
        const float weight = weights[n][2 * row + c];
        const float dx = weight * dp[n][2 * row + c];
        const bool counts = !is_excluded(weight);
        sum1_of_pairs[row][c] = counts ? dx : 0.0f;
        if (counts) add_grad2(p, at, column, key, dx);
      }
    }
    {
      const auto& x = sum1_of_pairs;
      sum1.put(n, x[0][0] + x[1][0], x[0][1] + x[1][1], [&](int column, float sum) { add_grad1(p, at, column, sum); });
    }
  }
}

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

  // This warpgroup's parts of dQ of the tile whose dS lies in `place`, handed to the warp that adds them.
  __device__ __forceinline__ void add_dq(uint32_t place) const {
#pragma unroll 1
    for (int part = group_; part < kDqParts; part += kGroups) {
      float dq[kDqRows / 8][4];
      const uint64_t a = ptx::columns_operand(shared_.keys() + part * kTileKv * kSlabBytes, kTileKv * kSlabBytes);
      const uint64_t b = ptx::rows_operand(shared_.slopes(place));
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
    store_fragments<Element, kStagedSlabs>(RowsOf<Element::Type>::of(view, block_.b, block_.hk), j, left < 16 ? left : 16,
                                           shared_.dq(group_) + warp_id() % 4 * kStagedSlabs * kStagedBytes, sums, factors);
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
    write(p_.dv, 1.0f, dv);
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
      start_at_nothing(s[0]);
      ptx::fence_products();
      multiply_rows<kHeadDim>(s[0], shared_.keys(), shared_.queries(stage));
      const bool late = is_coarse_tile(shared_.starts(stage));
      plans_.next();
      const Note next = peek();  // while products are under way
      ptx::wait_for_products<0>();
      ptx::settle(s[0]);
      if ((now.flags & 1) != 0 && !late) {
        weigh_whole(p_, pairs_of(now), shared_.starts(stage), s, weights);
      } else {
        weigh_mixed(p_, pairs_of(now), shared_.starts(stage), late ? gaps_of(p_, now.tile) : nullptr, s, weights);
      }
      ptx::sync_named<Named::kOfBoth>(Named::weights_empty());
      store_sums(shared_.weights(), s[0]);
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
      const Note now = peek();  // it is planned until its dQ is added
      plans_.next();
      const Note next = peek();  // while products are under way
      more = !next.is_stop();
      ptx::sync_named<Named::kOfBoth>(Named::weights_full());
      float weights[kQueryTiles][4];
      load_sums(weights, shared_.weights());
      ptx::arrive_named<Named::kOfBoth>(Named::weights_empty());
      ptx::wait_for_products<0>();
      ptx::settle(dp);
      const Block pairs{block_.b, now.h, now.i, kTileQ, block_.j + warp_id() % 4 * 16};
      sum_grads(p_, pairs, weights, dp);
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
    fagen_learned_d192_h100_backward(const __grid_constant__ fagen::BackwardParams p, const __grid_constant__ fagen::ptx::TensorMap q,
                              const __grid_constant__ fagen::ptx::TensorMap k,
                              const __grid_constant__ fagen::ptx::TensorMap v,
                              const __grid_constant__ fagen::ptx::TensorMap d_o) {
  using namespace fagen;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(ptx::shared_address(memory));
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(shared.keys_full(), 1);
    ptx::mbarrier_init(shared.values_full(), 1);
    shared.of_queries().make(1, 4 * kGroups);
    shared.of_gradients().make(1, 4 * kGroups);
    shared.of_plans().make(1, kGroups);
    ptx::fence_mbarrier_init();
  }
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

// Before it, a block of threads for each tile of queries: its rows' numbers.
extern "C" __global__ void __launch_bounds__(256)
    fagen_learned_d192_h100_backward_prepare(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  constexpr int kLanes = lanes_of_row(kValueDim), kRows = 256 / kLanes;
  const Work work(p);
  const int32_t tiles = query_tiles(p), tile = static_cast<int32_t>(blockIdx.x);
  const int32_t head = tile / tiles, heads = static_cast<int32_t>(p.shape.heads), b = head / heads, h = head % heads;
  const int32_t i = tile % tiles * kTileQ, left = static_cast<int32_t>(p.shape.q_len) - i;
  const auto o = RowsOf<Element::Type>::of(p.o, b, h), d_o = RowsOf<Element::Type>::of(p.d_o, b, h);
  const int64_t first = head * p.shape.q_len + i, padded = int64_t{tile} * kTileQ;
  const int own = static_cast<int>(threadIdx.x);
  const bool late = ptx::sync_block_or(own < kTileQ && own < left && is_late(p, p.lse[first + own]));
#pragma unroll 1
  for (int row = static_cast<int>(threadIdx.x) / kLanes; row < kTileQ; row += kRows) {
    const bool real = row < left;
    const int64_t at = i + (real ? row : 0);
    const float product = product_of_rows<Element, kValueDim>(o, at, d_o, at);
    if (lane_id() % kLanes != 0) continue;
    const float lse = real ? p.lse[first + row] : -kInfinity, d_lse = real && p.d_lse != nullptr ? p.d_lse[first + row] : 0.0f;
    work.starts[padded + place_of_row(row)] = lse;
    work.gaps[padded + place_of_row(row)] = 0.0f;
    work.deltas[padded + place_of_row(row)] = real ? d_lse - product : 0.0f;
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
    fagen_learned_d192_h100_backward_finish(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  using Staged = Rows<64 * kHeadSlabs>;
  __shared__ __align__(128) char memory[kTileQ * Staged::kBytes];
  const uint32_t staged = ptx::shared_address(memory);
  const int32_t tiles = query_tiles(p), tile = static_cast<int32_t>(blockIdx.x);
  const int32_t head = tile / tiles, heads = static_cast<int32_t>(p.shape.heads), b = head / heads, h = head % heads;
  const int32_t i = tile % tiles * kTileQ, left = static_cast<int32_t>(p.shape.q_len) - i;
  const int lane = lane_id();
  const auto put = [&](int at, int d, float x) {
    const uint16_t element = static_cast<uint16_t>(Element::pack(x * p.scale, 0.0f));
    ptx::st_shared_2(staged + Staged::at(at, d / 8) + d % 8 * 2, element);
  };
#pragma unroll 1
  for (int part = warp_id() / 4; part < kDqParts; part += 2) {
    const auto* const sums = reinterpret_cast<const float4*>(Work(p).dq + (int64_t{tile} * kDqParts + part) * kDqFloats) +
                             warp_id() % 4 * (kDqRows / 8) * 32 + lane;
    const int column = 64 * part + warp_id() % 4 * 16 + lane / 4, row = lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kDqRows / 8; ++n) {
      const float4 x = sums[32 * n];
      put(row + 8 * n, column, x.x);
      put(row + 8 * n + 1, column, x.y);
      put(row + 8 * n, column + 8, x.z);
      put(row + 8 * n + 1, column + 8, x.w);
    }
  }
  ptx::sync_block();
  const auto to = RowsOf<Element::Type>::of(p.dq, b, h);
#pragma unroll 1
  for (int some = 8 * warp_id(); some < kTileQ && some < left; some += 64)
    store_rows<Staged, 8, kHeadDim>(to, i + some, left - some < 8 ? left - some : 8, staged + some * Staged::kBytes);
}
