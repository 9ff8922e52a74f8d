// dropout_d64, backward, of spec golden: rendered by fagen, do not edit.
// mask: causal
// score: s
#include <cstring>

#include "fagen/cpu/math.h"
#include "fagen/cpu/gradient.h"
#include "fagen/cpu/pairs.h"
#include "fagen/cpu/softmax.h"
#include "fagen/cpu/turn.h"
#include "fagen/cpu/work.h"
#include "fagen/cpu/dropout.h"

namespace fagen {
namespace {

using Element = bf16;  // of q, k, v, o and their gradients in memory
using Product = Bf16Pairs;  // bf16 pairs, summed in float32
using Word = Product::Word;

constexpr int kHeadDim = 64;
constexpr int kValueDim = 64;
constexpr int kTileQ = 64;  // query rows that are multiplied at a time
constexpr int kTileKv = 256;  // keys of a work item, at most
constexpr int kBlockKv = 64;  // of those, keys that the mask is asked about at a time
constexpr int kRows = 8;  // rows in registers
constexpr int kKeyVectors = 2;  // vectors of keys in registers
constexpr int kHeadVectors = 2;  // vectors of a query or a key in registers
constexpr int kHeadPanels = 2;  // so many times, for a whole one
constexpr int kValueVectors = 2;  // vectors of a value in registers
constexpr int kValuePanels = 2;  // so many times, for a whole one
constexpr int kItemsAThread = 4;  // work items for each thread, if there are keys enough

constexpr int kKeyPanel = kKeyVectors * kLanes;
constexpr int kHeadPanel = kHeadVectors * kLanes;
constexpr int kHeadWidth = kHeadPanels * kHeadPanel;
constexpr int kValuePanel = kValueVectors * kLanes;
constexpr int kValueWidth = kValuePanels * kValuePanel;
constexpr int kHeadWords = (kHeadDim + Product::kDepth - 1) / Product::kDepth;
constexpr int kValueWords = (kValueDim + Product::kDepth - 1) / Product::kDepth;
constexpr int kQueryWords = (kHeadWords + kLanes - 1) / kLanes * kLanes;  // of a row of q, packed
constexpr int kGradWords = (kValueWords + kLanes - 1) / kLanes * kLanes;  // of a row of dO, packed
constexpr int kPaddedQ = (kTileQ + kRows - 1) / kRows * kRows;
constexpr int kTileWords = kTileKv / Product::kDepth;  // along the keys of a tile

// What a thread works on.
struct alignas(64) Scratch {
  // Of the item's keys.
  Word keys[kTileKv * kHeadWords];         // [panel][word of the head][key of the panel]
  Word values[kTileKv * kValueWords];      // [panel][word of the value][key of the panel]
  Word key_rows[kTileWords * kHeadWidth];  // [word along the keys][column]
  float dk[kTileKv * kHeadWidth];
  float dv[kTileKv * kValueWidth];
  // Of a tile of queries.
  Word q[kPaddedQ * kQueryWords];
  Word d_o[kPaddedQ * kGradWords];
  float weights[kPaddedQ * kTileKv];  // q · k, then P = exp(x - lse)
  float slopes[kPaddedQ * kTileKv];   // dO · v, then dS = d loss / d s
  Word q_pairs[kPaddedQ / 2 * kHeadWidth];     // [word along the rows][column]
  Word d_o_pairs[kPaddedQ / 2 * kValueWidth];  // [word along the rows][column]
  Word weight_pairs[kPaddedQ / 2 * kTileKv];   // [word along the rows][key]
  Word slope_pairs[kPaddedQ / 2 * kTileKv];    // [word along the rows][key]
  Word slope_words[kPaddedQ * kTileWords];     // [row][word along the keys]
  KeptPairs<kTileQ, kTileKv> kept;  // of the pairs that are multiplied, those that dropout keeps
  // Where a tile holds NaN or Inf: zeros in their place.
  Word finite_keys[kTileWords * kHeadWidth];
  Word finite_q[kPaddedQ / Product::kDepth * kHeadWidth];
  Word finite_d_o[kPaddedQ / Product::kDepth * kValueWidth];
};

// Rows [i, i + rows) of head h in batch b against keys [j, j + keys).
struct Block {
  int32_t b, h, i, rows, j, keys;
};

// Of a block's pairs, what the mask admits.
Tri mask_test(const BackwardParams& p, const Block& at) {
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
Tri tile_test(const BackwardParams& p, const Block& at) {
  if (at.j >= p.shape.kv_len) return Tri::kNone;
  const Tri admitted = mask_test(p, at);
  return at.j + at.keys > p.shape.kv_len ? admitted & Tri::kSome : admitted;
}

// The rows that may admit the keys of a block.
Ranges query_ranges(const BackwardParams& p, const Block& at) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span kv{at.j, least(at.j + at.keys, kv_len) - 1};
  return shifted(between(greatest(kv_len - q_len, kv.lo), kv_len), q_len - kv_len);
}

// From q · k and dO · v to weights and slopes, where every pair of the block counts.
void full_slopes(const BackwardParams& p, const Block& at, const float* lse, const float* norm, const float* delta,
                 const KeptPairs<kTileQ, kTileKv>& kept_pairs, float* weights, float* slopes) {
  for (int32_t r = 0; r < at.rows; ++r, weights += kTileKv, slopes += kTileKv) {
    for (int32_t n = 0; n < at.keys; n += kLanes) {
      const vf s = rounded(load(weights + n) * p.scale);
      const vf weight = exp_weight(s - lse[r]) * norm[r];
      const vi kept = kept_pairs.at(at.i + r, at.j + n);
      const vf dx = weight * ((kept ? load(slopes + n) * p.dropout.factor : vf{}) - delta[r]);
      store(weights + n, (kept ? weight : vf{}));
      store(slopes + n, dx);
    }
  }
}

// The same, where the mask may exclude a pair, a key may not exist, or a row may see none.
void partial_slopes(const BackwardParams& p, const Block& at, const float* lse, const float* norm, const float* delta,
                    const KeptPairs<kTileQ, kTileKv>& kept_pairs, float* weights, float* slopes) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  for (int32_t r = 0; r < at.rows; ++r, weights += kTileKv, slopes += kTileKv) {
    const int32_t i = at.i + r;
    const int32_t q = i + kv_len - q_len;
    const vi sees = all_lanes(lse[r] != -kInfinity);
    for (int32_t n = 0; n < at.keys; n += kLanes) {
      const vi j = lane_index() + (at.j + n);
      const vi kv = j;
      const vf s = rounded(load(weights + n) * p.scale);
      const vi admitted = (kv <= q) & (j < kv_len) & sees;
      const vf weight = exp_weight(s - lse[r]) * norm[r];
      const vi kept = kept_pairs.at(at.i + r, at.j + n);
      const vf dx = weight * ((kept ? load(slopes + n) * p.dropout.factor : vf{}) - delta[r]);
      store(weights + n, admitted ? (kept ? weight : vf{}) : broadcast(kExcluded));
      store(slopes + n, admitted ? dx : vf{});
    }
  }
}

// Adds up, row by row, the weights that slopes are made with. `weights` holds q · k.
void add_weights(const BackwardParams& p, const Block& at, const float* lse, const float* weights, double* sums) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  for (int32_t r = 0; r < at.rows; ++r, weights += kTileKv) {
    const int32_t i = at.i + r;
    const int32_t q = i + kv_len - q_len;
    vf sum{};
    for (int32_t n = 0; n < at.keys; n += kLanes) {
      const vi j = lane_index() + (at.j + n);
      const vi kv = j;
      const vf s = rounded(load(weights + n) * p.scale);
      const vi admitted = (kv <= q) & (j < kv_len);
      sum += admitted ? exp_weight(s - lse[r]) : vf{};
    }
    sums[r] += sum_lanes(sum);
  }
}

// Keys [j, j + keys) of key head hk in batch b, against all queries of the heads that share them.
struct KeyItem {
  int32_t b, hk, j, keys;
  int64_t turn;  // its own in Work::turns, after that of the item before it
};

// The workspace, and how a call is cut into work. There is one sum of dQ, whichever item adds to it: they take turns.
struct Work {
  int64_t group;  // query heads that share a key head
  int64_t query_tiles;  // of a head
  int64_t item_keys;  // of an item, at most
  int64_t key_parts;  // items a key head is cut into
  int64_t items;
  int64_t bytes;
  Turn* turns;  // [B, Hk, key_parts + 1]: of nobody, then of each item of a key head
  float* delta;  // [B, H, query_tiles, kPaddedQ]: dO · o - dlse
  float* norm;  // [B, H, query_tiles, kPaddedQ]: what weights exp(x - lse) are multiplied by, to add up to 1
  float* dq;  // [B, H, query_tiles, kPaddedQ, kHeadWidth]
  Scratch* scratch;  // [threads]

  explicit Work(const BackwardParams& p)
      : group(p.shape.heads / p.shape.kv_heads),
        query_tiles((p.shape.q_len + kTileQ - 1) / kTileQ),
        item_keys(kTileKv),
        bytes(0) {
    const int64_t key_heads = p.shape.batch * p.shape.kv_heads, heads = p.shape.batch * p.shape.heads;
    const auto parts = [&] { return (p.shape.kv_len + item_keys - 1) / item_keys; };
    while (key_heads * parts() < kItemsAThread * p.pool->threads && item_keys % (2 * kBlockKv) == 0) item_keys /= 2;
    key_parts = parts();
    items = key_heads * key_parts;
    turns = take<Turn>(p, key_heads * (key_parts + 1));
    delta = take<float>(p, heads * query_tiles * kPaddedQ);
    norm = take<float>(p, heads * query_tiles * kPaddedQ);
    dq = take<float>(p, heads * query_tiles * kPaddedQ * kHeadWidth);
    scratch = take<Scratch>(p, p.pool->threads);
  }

  // The first keys of all heads come first: under a causal mask they have the most queries.
  KeyItem item(const Shape& shape, int64_t n) const {
    const int64_t key_heads = shape.batch * shape.kv_heads, key_head = n % key_heads, part = n / key_heads;
    const int64_t j = part * item_keys;
    return {static_cast<int32_t>(key_head / shape.kv_heads), static_cast<int32_t>(key_head % shape.kv_heads),
            static_cast<int32_t>(j), static_cast<int32_t>(least(shape.kv_len - j, item_keys)),
            key_head * (key_parts + 1) + part + 1};
  }

  // The next part of the workspace: `count` of T, in lines of the cache of their own.
  template <class T>
  T* take(const BackwardParams& p, int64_t count) {
    char* const part = static_cast<char*>(p.workspace) + bytes;
    bytes += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(part);
  }
};

inline Element* row_at(const TensorView& view, int64_t b, int64_t s, int64_t h) {
  return static_cast<Element*>(view.data) + b * view.stride_b + s * view.stride_s + h * view.stride_h;
}
inline Tile<Element> tile_at(const TensorView& view, int64_t b, int64_t s, int64_t h, int rows, int width) {
  return {row_at(view, b, s, h), view.stride_s, view.stride_d, rows, width};
}

// Returns whether K holds NaN or Inf.
bool pack_keys(const BackwardParams& p, const KeyItem& item, int columns, Scratch& own) {
  const Tile<Element> k = tile_at(p.k, item.b, item.j, item.hk, item.keys, kHeadDim);
  const Tile<Element> v = tile_at(p.v, item.b, item.j, item.hk, item.keys, kValueDim);
  pack_transposed<Product, kKeyPanel>(own.values, columns, kValueWords * Product::kDepth, v);
  pack_transposed<Product, kKeyPanel>(own.keys, columns, kHeadWords * Product::kDepth, k);
  const bool nonfinite = pack_panels<Product, kHeadWidth>(own.key_rows, columns, kHeadWidth, k) >= kInfinityBits;
  if (nonfinite) keep_finite(Product{}, columns / Product::kDepth * kHeadWidth, own.key_rows, own.finite_keys);
  return nonfinite;
}

// A tile of query rows.
struct Queries {
  Tile<Element> q, d_o;
  const float* lse;
  const float* norm;
  const float* delta;
  float* dq;
  bool empty_row;  // whether a row sees no key
  bool nonfinite;  // whether q, k or dO holds NaN or Inf
  const Word *key_rows, *q_rows, *d_o_rows;  // B of the last three products: all finite
};

Queries queries_at(const BackwardParams& p, const Work& work, int64_t b, int64_t h, int64_t t) {
  const int64_t head = b * p.shape.heads + h, i = t * kTileQ, padded_row = (head * work.query_tiles + t) * kPaddedQ;
  const int rows = static_cast<int>(least(p.shape.q_len - i, kTileQ));
  Queries tile{};
  tile.q = tile_at(p.q, b, i, h, rows, kHeadDim);
  tile.d_o = tile_at(p.d_o, b, i, h, rows, kValueDim);
  tile.lse = p.lse + head * p.shape.q_len + i;
  tile.norm = work.norm + padded_row;
  tile.delta = work.delta + padded_row;
  tile.dq = work.dq + padded_row * kHeadWidth;
  for (int r = 0; r < rows; ++r) tile.empty_row |= tile.lse[r] == -kInfinity;
  return tile;
}

// Packs q and dO, as A of the first two products and as B of the last three.
void pack_queries(Queries& tile, bool nonfinite_keys, Scratch& own) {
  const int rows = (tile.q.rows + kRows - 1) / kRows * kRows;
  const uint32_t q = pack_rows<Product>(own.q, rows, kQueryWords * Product::kDepth, tile.q);
  const uint32_t d_o = pack_rows<Product>(own.d_o, rows, kGradWords * Product::kDepth, tile.d_o);
  pack_panels<Product, kHeadWidth>(own.q_pairs, rows, kHeadWidth, tile.q);
  pack_panels<Product, kValueWidth>(own.d_o_pairs, rows, kValueWidth, tile.d_o);
  tile.nonfinite = nonfinite_keys || q >= kInfinityBits || d_o >= kInfinityBits;
  tile.key_rows = nonfinite_keys ? own.finite_keys : own.key_rows;
  tile.q_rows = own.q_pairs;
  tile.d_o_rows = own.d_o_pairs;
  if (tile.nonfinite) {
    const int words = rows / Product::kDepth;
    keep_finite(Product{}, words * kHeadWidth, tile.q_rows, own.finite_q);
    keep_finite(Product{}, words * kValueWidth, tile.d_o_rows, own.finite_d_o);
    tile.q_rows = own.finite_q;
    tile.d_o_rows = own.finite_d_o;
  }
}

// Adjacent keys of an item, from its `column` on, of which the rows of a query tile admit all or some.
struct Run {
  Block at;
  int column;
  Tri admitted;
};

// The runs of a query tile `at` against all keys of an item, whose last panel is whole in `columns`. Returns how many.
int find_runs(const BackwardParams& p, Block at, int columns, bool empty_row, Run (&runs)[kTileKv / kBlockKv]) {
  int count = 0;
  Tri before = Tri::kNone;
  const int32_t j = at.j;
  for (int column = 0; column < columns; column += kBlockKv) {
    at.j = j + column;
    at.keys = static_cast<int32_t>(least(columns - column, kBlockKv));
    Tri admitted = tile_test(p, at);
    if (empty_row && admitted == Tri::kAll) admitted = Tri::kSome;
    if (admitted != Tri::kNone) {
      if (admitted == before) {
        runs[count - 1].at.keys += at.keys;
      } else {
        runs[count++] = {at, column, admitted};
      }
    }
    before = admitted;
  }
  return count;
}

// q · k of a run, into own.weights.
void multiply_keys(const Run& run, Scratch& own) {
  const int padded_rows = (run.at.rows + kRows - 1) / kRows * kRows;
  const Word* const keys = own.keys + run.column * kHeadWords;
  multiply<Product, kRows, kKeyVectors, kQueryWords, 1, false>(padded_rows, run.at.keys / kKeyPanel, kHeadWords, own.q,
                                                               keys, kKeyPanel * kHeadWords, own.weights + run.column,
                                                               kTileKv);
}

// What rounding lse to float32 left out is in every weight exp(x - lse) of a row. Where lse is so large that it counts,
// norm becomes 1 / Σ exp(x - lse), the sum over the row's keys.
void normalize(const BackwardParams& p, Block at, const float* lse, float* norm, Scratch& own) {
  const int64_t hk = at.h / (p.shape.heads / p.shape.kv_heads);
  const int padded_rows = (at.rows + kRows - 1) / kRows * kRows;
  double sums[kTileQ] = {};
  pack_rows<Product>(own.q, padded_rows, kQueryWords * Product::kDepth,
                     tile_at(p.q, at.b, at.i, at.h, at.rows, kHeadDim));
  for (int64_t j = 0; j < p.shape.kv_len; j += kTileKv) {
    const int keys = static_cast<int>(least(p.shape.kv_len - j, kTileKv));
    const int columns = (keys + kKeyPanel - 1) / kKeyPanel * kKeyPanel;
    at.j = static_cast<int32_t>(j);
    Run runs[kTileKv / kBlockKv];
    const int count = find_runs(p, at, columns, false, runs);
    if (count == 0) continue;
    pack_transposed<Product, kKeyPanel>(own.keys, columns, kHeadWords * Product::kDepth,
                                        tile_at(p.k, at.b, j, hk, keys, kHeadDim));
    for (int n = 0; n < count; ++n) {
      multiply_keys(runs[n], own);
      add_weights(p, runs[n].at, lse, own.weights + runs[n].column, sums);
    }
  }
  for (int r = 0; r < at.rows; ++r) {
    // By no more than rounding can have moved lse: one that other keys have a part in is not of these alone.
    const float rounding = 0x1p-23f * abs(lse[r]);
    if (is_coarse(lse[r]) && abs(log(static_cast<float>(sums[r]))) <= rounding)
      norm[r] = static_cast<float>(1.0 / sums[r]);
  }
}

// Before the items: delta and norm of query tile n, and zeros for its dQ.
void prepare(const BackwardParams& p, const Work& work, int64_t n, Scratch& own) {
  const int64_t head = n / work.query_tiles, b = head / p.shape.heads, h = head % p.shape.heads;
  const int64_t i = n % work.query_tiles * kTileQ;
  const int rows = static_cast<int>(least(p.shape.q_len - i, kTileQ));
  float* const delta = work.delta + n * kPaddedQ;
  for (int r = 0; r < rows; r += kLanes) {
    const int some = rows - r < kLanes ? rows - r : kLanes;
    const vf products = row_products<Product, kValueWords>(tile_at(p.d_o, b, i + r, h, some, kValueDim),
                                                           tile_at(p.o, b, i + r, h, some, kValueDim));
    for (int lane = 0; lane < some; ++lane) delta[r + lane] = products[lane];
  }
  const int64_t row = head * p.shape.q_len + i;
  if (p.d_lse != nullptr)
    for (int r = 0; r < rows; ++r) delta[r] -= p.d_lse[row + r];
  float* const norm = work.norm + n * kPaddedQ;
  bool coarse = false;
  for (int r = 0; r < rows; ++r) {
    norm[r] = 1.0f;
    coarse |= is_coarse(p.lse[row + r]);
  }
  if (coarse)
    normalize(p, Block{static_cast<int32_t>(b), static_cast<int32_t>(h), static_cast<int32_t>(i), rows, 0, 0},
              p.lse + row, norm, own);
  std::memset(work.dq + n * kPaddedQ * kHeadWidth, 0, sizeof(float) * kPaddedQ * kHeadWidth);
}

// Scores and slopes of a run, and what they add to dV and dK. dQ comes after, when it is the item's turn.
void attend_run(const BackwardParams& p, const Run& run, const Queries& tile, Scratch& own) {
  const Block& at = run.at;
  const int padded_rows = (at.rows + kRows - 1) / kRows * kRows, panels = at.keys / kKeyPanel;
  const Word* const values = own.values + run.column * kValueWords;
  float* const weights = own.weights + run.column;
  float* const slopes = own.slopes + run.column;
  own.kept.draw(p.dropout, at.b * p.shape.heads + at.h, at.i, at.rows, at.j, at.keys);
  multiply_keys(run, own);
  multiply<Product, kRows, kKeyVectors, kGradWords, 1, false>(padded_rows, panels, kValueWords, own.d_o, values,
                                                              kKeyPanel * kValueWords, slopes, kTileKv);
  if (run.admitted == Tri::kAll) {
    full_slopes(p, at, tile.lse, tile.norm, tile.delta, own.kept, weights, slopes);
  } else {
    partial_slopes(p, at, tile.lse, tile.norm, tile.delta, own.kept, weights, slopes);
  }
  const int even_rows = (at.rows + 1) / 2 * 2;
  if (even_rows > at.rows) {  // zeros, which the last row is paired with
    std::memset(weights + at.rows * kTileKv, 0, sizeof(float) * at.keys);
    std::memset(slopes + at.rows * kTileKv, 0, sizeof(float) * at.keys);
  }
  pair_rows<kTileKv>(even_rows, at.keys, weights, own.weight_pairs + run.column);
  pair_rows<kTileKv>(even_rows, at.keys, slopes, own.slope_pairs + run.column);
  pair_columns<kTileKv>(padded_rows, at.keys, slopes, own.slope_words + run.column / 2);
  const int row_words = (at.rows + Product::kDepth - 1) / Product::kDepth;
  float* const dv = own.dv + run.column * kValueWidth;
  float* const dk = own.dk + run.column * kHeadWidth;
  multiply<Product, kRows, kValueVectors, 1, kTileKv, true, kValueWidth>(
      at.keys, kValuePanels, row_words, own.weight_pairs + run.column, tile.d_o_rows, kValuePanel, dv, kValueWidth);
  multiply<Product, kRows, kHeadVectors, 1, kTileKv, true, kHeadWidth>(
      at.keys, kHeadPanels, row_words, own.slope_pairs + run.column, tile.q_rows, kHeadPanel, dk, kHeadWidth);
  if (tile.nonfinite) {
    add_nonfinite<kValueWidth>(tile.d_o, at.keys, weights, weights, kTileKv, 1, dv);
    add_nonfinite<kHeadWidth>(tile.q, at.keys, slopes, weights, kTileKv, 1, dk);
  }
}

// dQ += dS · k, of the same run: block by block, so that how keys are cut into items changes no sum.
void add_to_dq(const BackwardParams& p, const Run& run, int32_t hk, const Queries& tile, const Scratch& own) {
  const Block& at = run.at;
  const int padded_rows = (at.rows + kRows - 1) / kRows * kRows;
  const Word* const slopes = own.slope_words + run.column / Product::kDepth;
  for (int n = 0; n < at.keys; n += kBlockKv) {
    const int words = static_cast<int>(least(at.keys - n, kBlockKv)) / Product::kDepth;
    const Word* const keys = tile.key_rows + (run.column + n) / Product::kDepth * kHeadWidth;
    multiply<Product, kRows, kHeadVectors, kTileWords, 1, true, kHeadWidth>(
        padded_rows, kHeadPanels, words, slopes + n / Product::kDepth, keys, kHeadPanel, tile.dq, kHeadWidth);
  }
  if (tile.nonfinite) {
    const int keys = static_cast<int>(least(p.shape.kv_len - at.j, at.keys));
    add_nonfinite<kHeadWidth>(tile_at(p.k, at.b, at.j, hk, keys, kHeadDim), at.rows, own.slopes + run.column,
                              own.weights + run.column, 1, kTileKv, tile.dq);
  }
}

// Computes an item whole.
void attend(const BackwardParams& p, const Work& work, const KeyItem& item, Scratch& own) {
  const int columns = (item.keys + kKeyPanel - 1) / kKeyPanel * kKeyPanel;
  const bool nonfinite_keys = pack_keys(p, item, columns, own);
  std::memset(own.dk, 0, sizeof(float) * columns * kHeadWidth);
  std::memset(own.dv, 0, sizeof(float) * columns * kValueWidth);
  const Turn& before = work.turns[item.turn - 1];
  Turn& turn = work.turns[item.turn];
  for (int64_t g = 0; g < work.group; ++g) {
    const int32_t h = static_cast<int32_t>(item.hk * work.group + g);
    each_tile(query_ranges(p, Block{item.b, h, 0, 0, item.j, item.keys}), kTileQ, [&](int64_t t) {
      const int32_t i = static_cast<int32_t>(t * kTileQ);
      Queries tile = queries_at(p, work, item.b, h, t);
      Run runs[kTileKv / kBlockKv];
      const int count = find_runs(p, Block{item.b, h, i, tile.q.rows, item.j, 0}, columns, tile.empty_row, runs);
      if (count == 0) return;
      pack_queries(tile, nonfinite_keys, own);
      for (int n = 0; n < count; ++n) attend_run(p, runs[n], tile, own);
      const int64_t place = g * work.query_tiles + t + 1;
      wait_for(before, place);
      for (int n = 0; n < count; ++n) add_to_dq(p, runs[n], item.hk, tile, own);
      announce(turn, place);
    });
  }
  const int64_t end = work.group * work.query_tiles;
  wait_for(before, end);
  announce(turn, end);
  write_scaled<kHeadWidth>(own.dk, p.scale, item.keys, kHeadDim, row_at(p.dk, item.b, item.j, item.hk), p.dk.stride_s,
                           p.dk.stride_d);
  write_scaled<kValueWidth>(own.dv, p.dropout.factor, item.keys, kValueDim, row_at(p.dv, item.b, item.j, item.hk), p.dv.stride_s,
                            p.dv.stride_d);
}

}  // namespace
}  // namespace fagen

extern "C" int64_t fagen_dropout_d64_backward_workspace(const fagen::BackwardParams* params) {
  return fagen::Work(*params).bytes;
}

extern "C" void fagen_dropout_d64_backward(const fagen::BackwardParams* params) {
  using namespace fagen;
  const BackwardParams& p = *params;
  const Work work(p);
  const int64_t key_heads = p.shape.batch * p.shape.kv_heads, heads = p.shape.batch * p.shape.heads;
  for (int64_t n = 0; n < key_heads * (work.key_parts + 1); ++n)
    work.turns[n].place = n % (work.key_parts + 1) == 0 ? INT64_MAX : 0;
  share(*p.pool, heads * work.query_tiles, [&](int64_t n, int32_t thread) {
    prepare(p, work, n, work.scratch[thread]);
  });
  share(*p.pool, work.items, [&](int64_t n, int32_t thread) {
    const KeyItem item = work.item(p.shape, n);
    attend(p, work, item, work.scratch[thread]);
  });
  share(*p.pool, heads * work.query_tiles, [&](int64_t n, int32_t) {
    const int64_t head = n / work.query_tiles, i = n % work.query_tiles * kTileQ;
    write_scaled<kHeadWidth>(work.dq + n * kPaddedQ * kHeadWidth, p.scale,
                             static_cast<int>(least(p.shape.q_len - i, kTileQ)), kHeadDim,
                             row_at(p.dq, head / p.shape.heads, i, head % p.shape.heads), p.dq.stride_s, p.dq.stride_d);
  });
}
