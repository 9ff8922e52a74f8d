// dropout_d64_t4, backward, of spec cards: rendered by fagen, do not edit.
// mask: causal
// score: alibi(slope)
#include "fagen/cuda/array.h"
#include "fagen/cuda/gradient.h"
#include "fagen/cuda/backward_nonfinite.h"
#include "fagen/cuda/dropout.h"
#include "fagen/cuda/backward_products.h"
#include "fagen/cuda/backward_rows.h"
#include "fagen/cuda/counting_pairs.h"
#include "fagen/cuda/query_notes.h"
#include "fagen/cuda/sums.h"
#include "fagen/cuda/tiles.h"
#include "fagen/cuda/zeros.h"

namespace fagen {
namespace {

using Element = F16;  // of q, k, v, o and their gradients in memory

constexpr int kHeadDim = 64;
constexpr int kValueDim = 64;
constexpr int kTileKv = 128;  // keys of a block of threads
constexpr int kTileQ = 32;  // query rows of a tile
constexpr int kRowWarps = 4;  // so many along the keys,
constexpr int kColumnWarps = 2;  // by so many along the query rows, or the columns of dK and dV
constexpr int kStages = 1;  // tiles of q and dO in shared memory

constexpr int kWarps = kRowWarps * kColumnWarps;
constexpr int kThreads = 32 * kWarps;
constexpr int kWarpKeys = kTileKv / kRowWarps;
constexpr int kRowTiles = kWarpKeys / 16;
constexpr int kWarpRows = kTileQ / kColumnWarps;
constexpr int kQueryTiles = kWarpRows / 8;

using HeadRows = Rows<64>;
using ValueRows = Rows<64>;
using PairRows = Rows<kTileQ>;  // of weights and slopes: key rows by query columns
constexpr int kHeadTiles = HeadRows::kChunks / kColumnWarps;
constexpr int kValueTiles = ValueRows::kChunks / kColumnWarps;
constexpr int kKBytes = kTileKv * HeadRows::kBytes;
constexpr int kVBytes = kTileKv * ValueRows::kBytes;
constexpr int kQBytes = kTileQ * HeadRows::kBytes;
constexpr int kDoBytes = kTileQ * ValueRows::kBytes;
constexpr int kPairBytes = kTileKv * PairRows::kBytes;
constexpr int kStageBytes = kQBytes + kDoBytes + kTileQ * kNoteBytes;
constexpr int kWeights = kKBytes + kVBytes + kStages * kStageBytes;  // where weights are in shared memory, then slopes
constexpr int kHeld = kWeights + 2 * kPairBytes;  // where a block's HeldBlock is,
constexpr int kDrawn = kHeld + 20;                // the number of its work, if it draws one,
constexpr int kMask = kDrawn + 12;                // and what its mask admits, if it has one
static_assert(kMask + Tiles<kWarps>::kBytes == 62112, "what the launch asks for");

// While notes are made, tiles of o and dO are there, then of q and keys with sums of weights; deltas and lse are behind.
constexpr int kSums = kQBytes + kKBytes;
constexpr int kSumsEnd = kSums + kRowWarps * kTileQ * 4;
constexpr int kDeltas = 2 * kDoBytes > kSumsEnd ? 2 * kDoBytes : kSumsEnd;
static_assert(kDeltas + 2 * kTileQ * 4 == 21248, "what the launch asks for");

using Scores = float[kRowTiles][kQueryTiles][4];
using Counting = CountingPairs<kRowTiles, kQueryTiles>;
using KeySums = float[kRowTiles][kHeadTiles][4];
using ValueSums = float[kRowTiles][kValueTiles][4];

// Rows [i, i + rows) of head h in batch b against keys [j, j + keys).
struct Block {
  int32_t b, h, i, rows, j, keys;
};

// A tile of query rows of a head, if `tile` is not negative. Whether all its pairs count, but for rows that see no key.
struct Visit {
  int32_t h, tile;
  bool own;  // with this warp's keys
  bool all;  // with the block's
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

// The query rows that may admit the keys of a block.
__device__ __forceinline__ PositionRange row_range(const BackwardParams& p, const Block& at) {
  const auto between = PositionRange::between;
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span kv{at.j, least(at.j + at.keys, kv_len) - 1};
  return shifted(between(greatest(kv_len - q_len, kv.lo), kv_len), q_len - kv_len);
}

// From q · k and dO · v to weights, P = exp(x - lse), and slopes, dS = P (dP - delta) · dscore/ds: of key rows by query
// columns. Of pairs that count for nothing too.
__device__ __forceinline__ void make_slopes(const BackwardParams& p, const Block& at, uint32_t notes,
                                            const KeptColumns<kRowTiles, kQueryTiles>& kept, const Counting& pairs, Scores& weights, Scores& slopes) {
  const Array<const float, 1> slope_at(p.params[0]);
  const int32_t h = at.h;
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Gradient<1> slope_at_grad(p.d_params[0]);
  const int lane = lane_id();
  float total1 = 0.0f;
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      int column = 8 * n + lane % 4 * 2 + c;
      ptx::hide(column);
      const Note note = note_at(notes + column * kNoteBytes);
      const int32_t i = at.i + column;
      const int32_t q = i + kv_len - q_len;
      const float slope_at_h = slope_at.load(h);
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row) {
        float& weight = weights[row / 2][n][row % 2 * 2 + c];
        float& slope = slopes[row / 2][n][row % 2 * 2 + c];
        const int32_t j = at.j + 8 * row + lane / 4;
        const int32_t kv = j;
        const float s = weight * p.scale;
        const float t1 = static_cast<float>(abs(q - kv));
        weight = ptx::ex2(__fsub_rn(s - slope_at_h * t1, note.lse) * kLog2e) * note.norm;
        const bool keeps = kept.kept(row, n, c);
        const float dx = weight * ((keeps ? slope * p.dropout.factor : 0.0f) - note.delta);
        weight = keeps ? weight : 0.0f;
        if (pairs.count(row, n, c)) total1 += dx * (-t1);
        slope = dx;
      }
    }
  {
    const float total = sum_of_warp(total1);
    if (lane == 0) {
      slope_at_grad.add(total, h);
    }
  }
}

// Adds up, query column by query column, the weights that slopes are made with. `weights` holds q · k.
__device__ __forceinline__ void sum_weights(const BackwardParams& p, const Block& at, uint32_t lse, const Scores& weights,
                                            float (&sums)[kQueryTiles][2]) {
  const Array<const float, 1> slope_at(p.params[0]);
  const int32_t h = at.h;
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const int lane = lane_id();
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      int column = 8 * n + lane % 4 * 2 + c;
      ptx::hide(column);
      const Note note{__uint_as_float(ptx::ld_shared_4(lse + column * 4)), 1.0f, 0.0f, 0.0f};
      const int32_t i = at.i + column;
      const int32_t q = i + kv_len - q_len;
      const float slope_at_h = slope_at.load(h);
#pragma unroll
      for (int row = 0; row < 2 * kRowTiles; ++row) {
        const float weight = weights[row / 2][n][row % 2 * 2 + c];
        const int32_t j = at.j + 8 * row + lane / 4;
        const int32_t kv = j;
        const float s = weight * p.scale;
        const float t1 = static_cast<float>(abs(q - kv));
        sums[n][c] += (kv <= q) && j < kv_len ? ptx::ex2(__fsub_rn(s - slope_at_h * t1, note.lse) * kLog2e) : 0.0f;
      }
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

__device__ __forceinline__ int32_t query_tiles_of(const BackwardParams& p) {
  return static_cast<int32_t>((p.shape.q_len + kTileQ - 1) / kTileQ);
}

// The number of a tile of query rows among those of all heads.
__device__ __forceinline__ int64_t tile_of(const BackwardParams& p, int32_t b, const Visit& visit) {
  return (b * p.shape.heads + visit.h) * query_tiles_of(p) + visit.tile;
}

// The keys of a block of threads, with the first of the heads that share them: neighbours share these.
__device__ __forceinline__ Block block_of(const BackwardParams& p, uint32_t work) {
  const uint32_t tiles = (static_cast<uint32_t>(p.shape.kv_len) + kTileKv - 1) / kTileKv;
  const uint32_t key_heads = static_cast<uint32_t>(p.shape.kv_heads), head = work / tiles;
  const int32_t group = static_cast<int32_t>(p.shape.heads) / static_cast<int32_t>(p.shape.kv_heads);
  return {static_cast<int32_t>(head / key_heads), static_cast<int32_t>(head % key_heads) * group, 0, 0,
          static_cast<int32_t>(work % tiles) * kTileKv, kTileKv};
}

// The part of a block's keys that a warp has.
__device__ __forceinline__ Block warp_keys(Block at) {
  at.j += warp_id() / kColumnWarps * kWarpKeys;
  at.keys = kWarpKeys;
  return at;
}

// The same keys with a tile of query rows.
__device__ __forceinline__ Block at_rows(const BackwardParams& p, Block at, int32_t h, int32_t tile) {
  at.h = h;
  at.i = tile * kTileQ;
  const int64_t left = p.shape.q_len - at.i;
  at.rows = static_cast<int32_t>(left < kTileQ ? left : kTileQ);
  return at;
}

// A block's keys and their head, in shared memory: registers are for sums.
class HeldBlock {
 public:
  __device__ __forceinline__ explicit HeldBlock(uint32_t shared) : shared_(shared) {}

  // One thread writes for all.
  __device__ __forceinline__ void write(const Block& block, int32_t group) const {
    if (threadIdx.x == 0) {
      ptx::st_shared_16(shared_, make_uint4(block.b, block.h, block.j, block.h / group));
      ptx::st_shared_4(shared_ + 16, block.h + group);
    }
    ptx::sync_block();
  }
  __device__ __forceinline__ Block block() const {
    const uint4 x = ptx::ld_shared_16(shared_);
    return {static_cast<int>(x.x), static_cast<int>(x.y), 0, 0, static_cast<int>(x.z), kTileKv};
  }
  __device__ __forceinline__ int32_t key_head() const { return static_cast<int32_t>(ptx::ld_shared_16(shared_).w); }
  // The head after the last one that shares the keys.
  __device__ __forceinline__ int32_t end() const { return static_cast<int32_t>(ptx::ld_shared_4(shared_ + 16)); }

 private:
  uint32_t shared_;
};

// Asks the mask for tiles of query rows of a block's head, if none is known.
__device__ __forceinline__ void find_rows(const BackwardParams& p, const Block& block, Tiles<kWarps>& tiles) {
  const Block part = warp_keys(block);
  const auto below = [&](int tile) {
    const KeyRange rows = row_range(p, block).below(tile * kTileQ);
    return KeyRange{rows.first / kTileQ, (rows.last + kTileQ - 1) / kTileQ};
  };
  tiles.find(part.j >= p.shape.kv_len, below, [&](int tile) { return tile_test(p, at_rows(p, part, part.h, tile)); });
}

// Sums of a block's keys over all rows that see them, in all heads that share them; what they add to dQ.
__device__ __forceinline__ void attend(const BackwardParams& p, const HeldBlock& held, uint32_t k_shared, KeySums& dk,
                                       ValueSums& dv) {
  const uint32_t v_shared = k_shared + kKBytes, stages_shared = v_shared + kVBytes;
  const uint32_t weights_shared = k_shared + kWeights, slopes_shared = weights_shared + kPairBytes;
  const int row = warp_id() / kColumnWarps * kWarpKeys, part = warp_id() % kColumnWarps;
  const int32_t query_tiles = query_tiles_of(p);
  int32_t h = held.block().h;
  const auto load = [&](const Visit& visit, int stage) {
    const uint32_t q = stages_shared + stage * kStageBytes, d_o = q + kQBytes;
    const int q_len = static_cast<int>(p.shape.q_len), first = visit.tile * kTileQ;
    const int32_t b = held.block().b;
    load_rows<HeadRows, kTileQ, kHeadDim, kThreads>(q, RowsOf<Element::Type>::of(p.q, b, visit.h), first, q_len);
    load_rows<ValueRows, kTileQ, kValueDim, kThreads>(d_o, RowsOf<Element::Type>::of(p.d_o, b, visit.h), first, q_len);
    load_notes<kTileQ>(d_o + kDoBytes, static_cast<const char*>(p.notes) + tile_of(p, b, visit) * (kTileQ * kNoteBytes));
  };
  const PhiloxKey key = dropout_key(p.dropout);
  const uint32_t mask_shared = k_shared + kMask;
  Tiles<kWarps> tiles(mask_shared, query_tiles);
  const auto next = [&]() -> Visit {
    for (;;) {
      if (tiles.wanting()) find_rows(p, at_rows(p, held.block(), h, 0), tiles);
      const int tile = tiles.take();
      if (tile >= 0) {
        const Admitted admitted = tiles.admitted(tile);
        const bool keys_exist = warp_keys(held.block()).j + kWarpKeys <= p.shape.kv_len;
        return {h, tile, admitted.own && keys_exist, admitted.all};
      }
      if (++h == held.end()) return {h, -1, false, false};
      tiles = Tiles<kWarps>(mask_shared, query_tiles);
    }
  };
  Visit now = next();
  ptx::commit_copies();
  ptx::wait_for_copies<0>();
  const bool nonfinite_keys = ptx::sync_block_or(has_nonfinite<Element, HeadRows, kTileKv, kThreads>(k_shared));
  for (int stage = 0; now.tile >= 0; stage = 0) {
    ptx::sync_block();  // nobody reads the last tile any more
    load(now, stage);
    ptx::commit_copies();
    const Visit after = next();
    ptx::wait_for_copies<0>();
    ptx::sync_block();
    const uint32_t q = stages_shared + stage * kStageBytes, d_o = q + kQBytes, notes = d_o + kDoBytes;
    const uint32_t own_notes = notes + part * (kWarpRows * kNoteBytes);
    Scores weights, slopes;
    multiply_keys<Element, HeadRows>(weights, k_shared, row, q + part * (kWarpRows * HeadRows::kBytes));
    multiply_keys<Element, ValueRows>(slopes, v_shared, row, d_o + part * (kWarpRows * ValueRows::kBytes));
    const bool gaps = note_at(notes).gaps != 0.0f, whole = now.own && !gaps;
    Block at = at_rows(p, warp_keys(held.block()), now.h, now.tile);
    at.i += part * kWarpRows;
    const auto counts = [&](int key, int query) {
      return admits(p, at, query, key) && note_at(own_notes + query * kNoteBytes).norm != 0.0f;
    };
    KeptColumns<kRowTiles, kQueryTiles> kept;
    kept.draw(dropping(p.dropout, key, p.shape.heads, at.b, at.h, at.i), at.j);
    Counting pairs;
    if (whole) {
      pairs.all();
    } else {
      pairs.ask(counts);
    }
    make_slopes(p, at, own_notes, kept, pairs, weights, slopes);
    if (!whole) pairs.exclude(weights, slopes);
    store_pairs<Element, PairRows>(weights_shared, row, part * kWarpRows, weights);
    store_pairs<Element, PairRows>(slopes_shared, row, part * kWarpRows, slopes);
    ptx::sync_block();
    // Where pairs are excluded, elements of q and dO that are no finite numbers are left out of the sums, each by the thread
    // that has copied it. Scores have been made with them.
    const bool excluding = gaps || !now.all;
    bool nonfinite = false;
    if (excluding) {
      nonfinite = remove_nonfinite<Element, HeadRows, kTileQ, kThreads>(q);
      nonfinite |= remove_nonfinite<Element, ValueRows, kTileQ, kThreads>(d_o);
      nonfinite = ptx::sync_block_or(nonfinite);
    }
    add_product<Element, PairRows, ValueRows, kColumnWarps, kTileQ / 16>(dv, weights_shared, row, d_o, part);
    add_product<Element, PairRows, HeadRows, kColumnWarps, kTileQ / 16>(dk, slopes_shared, row, q, part);
    if (nonfinite) {
      const Block rows = at_rows(p, held.block(), now.h, now.tile);
      add_nonfinite_rows<Element, PairRows, kColumnWarps, kValueDim>(
          dv, RowsOf<Element::Type>::of(p.d_o, rows.b, now.h), rows.i, rows.rows, weights_shared, weights_shared, row, part);
      add_nonfinite_rows<Element, PairRows, kColumnWarps, kHeadDim>(
          dk, RowsOf<Element::Type>::of(p.q, rows.b, now.h), rows.i, rows.rows, slopes_shared, weights_shared, row, part);
    }
    if (nonfinite_keys && excluding) {
      add_to_query_sums_slowly<Element, PairRows, HeadRows, kThreads, kTileKv, kTileQ>(
          p.dq_sums, tile_of(p, held.block().b, now) * kTileQ, slopes_shared, weights_shared, k_shared);
    } else {
      add_to_query_sums<Element, PairRows, HeadRows, kWarps, kTileKv, kTileQ>(
          p.dq_sums, tile_of(p, held.block().b, now) * kTileQ, slopes_shared, k_shared);
    }
    now = after;
  }
  ptx::wait_for_copies<0>();
}

// A tile of query rows.
__device__ __forceinline__ Block rows_of(const BackwardParams& p, uint32_t tile) {
  const uint32_t tiles = static_cast<uint32_t>(query_tiles_of(p)), heads = static_cast<uint32_t>(p.shape.heads);
  const Block head{static_cast<int32_t>(tile / tiles / heads), static_cast<int32_t>(tile / tiles % heads), 0, 0, 0, kTileKv};
  return at_rows(p, head, head.h, static_cast<int32_t>(tile % tiles));
}

// What rounding lse to float32 left out is in every weight exp(x - lse) of a row. Where lse is so large that it counts, the
// norm of this thread's row: 1 / Σ exp(x - lse). All threads call it; lse of each row is in shared memory, in the units of
// exponents, and this thread's in natural ones too.
__device__ __forceinline__ float normalize(const BackwardParams& p, const Block& rows, uint32_t q_shared, uint32_t lse_shared,
                                           float lse) {
  const uint32_t k_shared = q_shared + kQBytes, sums_shared = q_shared + kSums;
  const int row = warp_id() / kColumnWarps * kWarpKeys, part = warp_id() % kColumnWarps, lane = lane_id();
  const int32_t hk = rows.h / (static_cast<int32_t>(p.shape.heads) / static_cast<int32_t>(p.shape.kv_heads));
  const int kv_len = static_cast<int>(p.shape.kv_len);
  float sums[kQueryTiles][2] = {};
  load_rows<HeadRows, kTileQ, kHeadDim, kThreads>(q_shared, RowsOf<Element::Type>::of(p.q, rows.b, rows.h), rows.i,
                                                  static_cast<int>(p.shape.q_len));
#pragma unroll 1
  for (int j = 0; j < kv_len; j += kTileKv) {
    load_rows<HeadRows, kTileKv, kHeadDim, kThreads>(k_shared, RowsOf<Element::Type>::of(p.k, rows.b, hk), j, kv_len);
    ptx::commit_copies();
    ptx::wait_for_copies<0>();
    ptx::sync_block();
    Scores weights;
    multiply_keys<Element, HeadRows>(weights, k_shared, row, q_shared + part * (kWarpRows * HeadRows::kBytes));
    Block at = rows;
    at.i += part * kWarpRows;
    at.j = j;
    at = warp_keys(at);
    sum_weights(p, at, lse_shared + part * (kWarpRows * 4), weights, sums);
    ptx::sync_block();  // the next tile's keys take the place of these
  }
  ptx::wait_for_copies<0>();
#pragma unroll
  for (int n = 0; n < kQueryTiles; ++n)
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float sum = sum_of_column(sums[n][c]);
      const int column = part * kWarpRows + 8 * n + lane % 4 * 2 + c;
      if (lane / 4 == 0)
        ptx::st_shared_4(sums_shared + (warp_id() / kColumnWarps * kTileQ + column) * 4, __float_as_uint(sum));
    }
  ptx::sync_block();
  if (threadIdx.x >= rows.rows) return 1.0f;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kRowWarps; ++warp)
    sum += __uint_as_float(ptx::ld_shared_4(sums_shared + (warp * kTileQ + threadIdx.x) * 4));
  return norm_of(lse, sum);
}

// The notes on a tile of query rows, and zeros that its dQ is added to.
__device__ __forceinline__ void prepare(const BackwardParams& p, const Block& rows, uint32_t shared, void* notes, float* sums) {
  static_assert(kTileQ <= kThreads, "a thread for each row");
  const uint32_t o_shared = shared, d_o_shared = o_shared + kDoBytes;
  const uint32_t deltas_shared = shared + kDeltas, lse_shared = deltas_shared + kTileQ * 4;
  const int lane = lane_id(), q_len = static_cast<int>(p.shape.q_len), own = static_cast<int>(threadIdx.x);
  load_rows<ValueRows, kTileQ, kValueDim, kThreads>(o_shared, RowsOf<Element::Type>::of(p.o, rows.b, rows.h), rows.i, q_len);
  load_rows<ValueRows, kTileQ, kValueDim, kThreads>(d_o_shared, RowsOf<Element::Type>::of(p.d_o, rows.b, rows.h), rows.i, q_len);
  ptx::commit_copies();
  const int64_t place = (rows.b * p.shape.heads + rows.h) * p.shape.q_len + rows.i + own;
  const float lse = own < rows.rows ? p.lse[place] : -kInfinity;
  put_zeros<kTileQ * HeadRows::kChunks * 8, kThreads>(sums);  // while rows come
  if (own < kTileQ) ptx::st_shared_4(lse_shared + own * 4, __float_as_uint(lse));
  ptx::wait_for_copies<0>();
  const bool gaps = ptx::sync_block_or(own < kTileQ && lse == -kInfinity), coarse = ptx::sync_block_or(is_coarse(lse));
  // dO · O, as dO · V is multiplied: where a query sees one key, they are the same number.
#pragma unroll 1
  for (int row = 16 * warp_id(); row < kTileQ; row += 16 * kWarps) {
    float x[1][2][4];
    multiply_keys<Element, ValueRows>(x, o_shared, row, d_o_shared + row * ValueRows::kBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half)  // what is on the diagonal
      if (lane % 4 == lane / 8)
        ptx::st_shared_4(deltas_shared + (row + 8 * half + lane / 4) * 4,
                         __float_as_uint(lane / 4 % 2 == 0 ? x[0][half][2 * half] : x[0][half][2 * half + 1]));
  }
  ptx::sync_block();
  float norm = 1.0f;
  if (coarse) norm = normalize(p, rows, shared, lse_shared, lse);
  if (own >= kTileQ) return;
  Note note{0.0f, 0.0f, 0.0f, gaps ? 1.0f : 0.0f};
  if (own < rows.rows) {
    note.lse = lse;
    note.norm = lse == -kInfinity ? 0.0f : norm;
    note.delta = __uint_as_float(ptx::ld_shared_4(deltas_shared + own * 4)) - (p.d_lse == nullptr ? 0.0f : p.d_lse[place]);
  }
  store_note(static_cast<char*>(notes) + own * kNoteBytes, note);
}

}  // namespace
}  // namespace fagen

extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_d64_t4_backward_prepare(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  extern __shared__ __align__(128) char memory[];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTileQ;
  prepare(p, rows_of(p, blockIdx.x), ptx::shared_address(memory), static_cast<char*>(p.notes) + first * kNoteBytes,
          p.dq_sums + first * (HeadRows::kChunks * 8));
}

extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_d64_t4_backward(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  extern __shared__ __align__(128) char memory[];
  const uint32_t shared = ptx::shared_address(memory);
  const uint32_t work = blockIdx.x;
  Block block = block_of(p, work);
  const int32_t group = static_cast<int32_t>(p.shape.heads) / static_cast<int32_t>(p.shape.kv_heads);
  const int kv_len = static_cast<int>(p.shape.kv_len);
  load_rows<HeadRows, kTileKv, kHeadDim, kThreads>(shared, RowsOf<Element::Type>::of(p.k, block.b, block.h / group), block.j,
                                                   kv_len);
  load_rows<ValueRows, kTileKv, kValueDim, kThreads>(
      shared + kKBytes, RowsOf<Element::Type>::of(p.v, block.b, block.h / group), block.j, kv_len);
  KeySums dk = {};
  ValueSums dv = {};
  const HeldBlock held(shared + kHeld);
  held.write(block, group);
  attend(p, held, shared, dk, dv);
  ptx::sync_block();  // keys and values make room for their gradients
  const int row = warp_id() / kColumnWarps * kWarpKeys, part = warp_id() % kColumnWarps;
  block = held.block();
  const int32_t key_head = held.key_head();
  store_sums<Element, HeadRows, kColumnWarps, kWarps, kTileKv, kHeadDim>(
      RowsOf<Element::Type>::of(p.dk, block.b, key_head), block.j, kv_len - block.j, shared, row, part, dk, p.scale);
  store_sums<Element, ValueRows, kColumnWarps, kWarps, kTileKv, kValueDim>(
      RowsOf<Element::Type>::of(p.dv, block.b, key_head), block.j, kv_len - block.j, shared + kKBytes, row, part, dv,
      p.dropout.factor);
}

extern "C" __global__ void __launch_bounds__(fagen::kThreads)
    fagen_dropout_d64_t4_backward_finish(const __grid_constant__ fagen::BackwardParams p) {
  using namespace fagen;
  const Block rows = rows_of(p, blockIdx.x);
  write_query_sums<Element, HeadRows, kWarps, kTileQ, kHeadDim>(RowsOf<Element::Type>::of(p.dq, rows.b, rows.h), rows.i,
                                                                rows.rows, p.dq_sums,
                                                                static_cast<int64_t>(blockIdx.x) * kTileQ, p.scale);
}
