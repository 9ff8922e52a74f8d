// dropout_d64, forward, of spec golden: rendered by fagen, do not edit.
// mask: causal
// score: s
#include <cstring>

#include "fagen/cpu/math.h"
#include "fagen/cpu/nonfinite.h"
#include "fagen/cpu/softmax.h"
#include "fagen/cpu/work.h"
#include "fagen/cpu/dropout.h"

namespace fagen {
namespace {

using Element = bf16;  // of q, k, v and o in memory
using Product = Bf16Pairs;  // bf16 pairs, summed in float32
using Word = Product::Word;

constexpr int kHeadDim = 64;
constexpr int kValueDim = 64;
constexpr int kTileQ = 48;  // query rows of a work item
constexpr int kTileKv = 256;  // keys of a tile
constexpr int kRows = 6;  // query rows in registers
constexpr int kKeyVectors = 4;  // vectors of keys in registers
constexpr int kValueVectors = 4;  // vectors of a value in registers
constexpr int kValuePanels = 1;  // so many times, for a whole value
constexpr int kPackReaders = 2;  // more items than this that read a tile have it packed once, before

constexpr int kKeyPanel = kKeyVectors * kLanes;
constexpr int kValuePanel = kValueVectors * kLanes;
constexpr int kValueWidth = kValuePanels * kValuePanel;
constexpr int kHeadWords = (kHeadDim + Product::kDepth - 1) / Product::kDepth;
constexpr int kRowWords = (kHeadWords + kLanes - 1) / kLanes * kLanes;  // of a packed query
constexpr int kTileWords = kTileKv / Product::kDepth;                   // along the keys of a tile
constexpr int kWordKeys = kLanes * Product::kDepth;                     // keys of a vector of words

// kTileKv keys and their values, packed as B of the two products.
struct alignas(64) KeyTile {
  Word keys[kTileKv * kHeadWords];        // [panel][word of the head][key of the panel]
  Word values[kTileWords * kValueWidth];  // [panel][word along the keys][column of the panel]
  uint32_t magnitude;                     // of the largest element of V, as the bits of a float32
};

// Scores of a block of rows against a tile.
struct alignas(64) Scores {
  float x[kRows * kTileKv];
  vf most[kRows];  // the largest of each row, by lanes
  int32_t admitted[kRows * kTileKv];  // by a partial tile's mask: 0 or -1
};

// What a thread works on. `largest`, `total` and `o` are the running softmax of softmax.h.
struct alignas(64) Scratch {
  Word q[kTileQ * kRowWords];
  Scores scores;
  Word weights[kRows * kTileWords];  // exp(x - largest)
  float largest[kTileQ];
  float total[kTileQ * kLanes];
  float o[kTileQ * kValueWidth];
  KeyTile tile;  // where a tile is packed that no other item needs
  Word finite[kTileWords * kValueWidth];  // the values of a tile without NaN and Inf
  KeptPairs<kTileQ, kTileKv> kept;  // of the pairs that are multiplied, those that dropout keeps
};

// Rows [i, i + rows) of head h in batch b against keys [j, j + keys).
struct Block {
  int32_t b, h, i, rows, j, keys;
};

// Of a block's pairs, what the mask admits.
Tri mask_test(const ForwardParams& p, const Block& at) {
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
Tri tile_test(const ForwardParams& p, const Block& at) {
  if (at.j >= p.shape.kv_len) return Tri::kNone;
  const Tri admitted = mask_test(p, at);
  return at.j + at.keys > p.shape.kv_len ? admitted & Tri::kSome : admitted;
}

// The keys that the rows of a block may admit.
Ranges key_ranges(const ForwardParams& p, const Block& at) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span q = Span{at.i, at.i + at.rows - 1} + Span{kv_len - q_len};
  return between(0, least(kv_len, q.hi + 1));
}

// From q · k to scores, where every pair of the block counts.
void full_scores(const ForwardParams& p, const Block& at, Scores& own) {
  for (int32_t r = 0; r < at.rows; ++r) {
    float* const x = own.x + r * kTileKv;
    vf most = broadcast(-kInfinity);
    for (int32_t n = 0; n < at.keys; n += kLanes) {
      const vf s = rounded(load(x + n) * p.scale);
      const vf score = s;
      most = larger(most, score);
      store(x + n, score);
    }
    own.most[r] = most;
  }
}

// From q · k to scores: -inf for a pair that the mask does not admit, or whose key does not exist. Returns the keys up
// to the last that a row admits, in whole vectors of words.
int32_t partial_scores(const ForwardParams& p, const Block& at, Scores& own) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  for (int32_t r = 0; r < at.rows; ++r) {
    const int32_t i = at.i + r;
    const int32_t q = i + kv_len - q_len;
    float* const x = own.x + r * kTileKv;
    vf most = broadcast(-kInfinity);
    for (int32_t n = 0; n < at.keys; n += kLanes) {
      const vi j = lane_index() + (at.j + n);
      const vi kv = j;
      const vf s = rounded(load(x + n) * p.scale);
      const vi admitted = (kv <= q) & (j < kv_len);
      store(own.admitted + r * kTileKv + n, admitted);
      const vf score = admitted ? s : broadcast(-kInfinity);
      most = larger(most, score);
      store(x + n, score);
    }
    own.most[r] = most;
  }
  int32_t keys = at.keys;
  for (vi seen{}; keys > kWordKeys; keys -= kWordKeys) {
    for (int32_t r = 0; r < at.rows; ++r)
      for (int32_t n = keys - kWordKeys; n < keys; n += kLanes) seen |= load(own.admitted + r * kTileKv + n);
    if (any(seen)) break;
  }
  return keys;
}

// Whether the mask admits any pair of a block: pair by pair.
bool admits_any(const ForwardParams& p, Block at) {
  const int32_t end = at.i + at.rows;
  bool any = false;
  for (; at.i < end; at.i += kRows) {
    at.rows = static_cast<int32_t>(least(end - at.i, kRows));
    Scores scores{};
    partial_scores(p, at, scores);
    for (const int32_t admitted : scores.admitted) any |= admitted != 0;
  }
  return any;
}

inline const Element* row_at(const TensorView& view, int64_t b, int64_t s, int64_t h) {
  return static_cast<const Element*>(view.data) + b * view.stride_b + s * view.stride_s + h * view.stride_h;
}

void pack_tile(const ForwardParams& p, int64_t b, int64_t hk, int64_t j, KeyTile& tile) {
  const int keys = static_cast<int>(least(p.shape.kv_len - j, kTileKv));
  const Tile<Element> k{row_at(p.k, b, j, hk), p.k.stride_s, p.k.stride_d, keys, kHeadDim};
  const Tile<Element> v{row_at(p.v, b, j, hk), p.v.stride_s, p.v.stride_d, keys, kValueDim};
  pack_transposed<Product, kKeyPanel>(tile.keys, kTileKv, kHeadWords * Product::kDepth, k);
  tile.magnitude = pack_panels<Product, kValuePanel>(tile.values, kTileKv, kValueWidth, v);
}

// x = q · k, of a block of rows and `panels` panels of keys.
void multiply_keys(int rows, int panels, const Word* q, const Word* keys, float* x) {
  constexpr int kPanel = kHeadWords * kKeyPanel;
  if (rows == kRows) {
    multiply<Product, kRows, kKeyVectors, kRowWords, 1, false>(kRows, panels, kHeadWords, q, keys, kPanel, x, kTileKv);
  } else {
    multiply<Product, 1, kKeyVectors, kRowWords, 1, false>(rows, panels, kHeadWords, q, keys, kPanel, x, kTileKv);
  }
}

// o += weights · v, of a block of rows and `keys` keys.
void multiply_values(int rows, int keys, const Word* weights, const Word* values, float* o) {
  constexpr int kPanel = kTileWords * kValuePanel;
  const int steps = keys / Product::kDepth;
  if (rows == kRows) {
    multiply<Product, kRows, kValueVectors, kTileWords, 1, true>(kRows, kValuePanels, steps, weights, values, kPanel, o,
                                                                 kValueWidth);
  } else {
    multiply<Product, 1, kValueVectors, kTileWords, 1, true>(rows, kValuePanels, steps, weights, values, kPanel, o,
                                                             kValueWidth);
  }
}

// Takes a tile into the running softmax of a block of rows, `row` being the first of them in the scratch. `admitted` is
// what the mask admits of the tile; a block cuts a partial one to the panels that it needs.
void attend_block(const ForwardParams& p, Block at, Tri admitted, const KeyTile& tile, int row, Scratch& own) {
  int first = 0, panels = kTileKv / kKeyPanel;
  if (admitted == Tri::kSome) {
    const int32_t j = at.j;
    int last = 0;
    admitted = Tri::kAll;
    at.keys = kKeyPanel;
    for (int panel = 0; panel < kTileKv / kKeyPanel; ++panel) {
      at.j = j + panel * kKeyPanel;
      const Tri test = tile_test(p, at);
      if (test == Tri::kNone) continue;
      if (last == 0) first = last = panel;
      if (test == Tri::kSome || last < panel) admitted = Tri::kSome;
      last = panel + 1;
    }
    if (last == 0) return;
    panels = last - first;
    at.j = j + first * kKeyPanel;
    at.keys = panels * kKeyPanel;
  }
  float* const o = own.o + row * kValueWidth;
  multiply_keys(at.rows, panels, own.q + row * kRowWords, tile.keys + first * kKeyPanel * kHeadWords, own.scores.x);
  if (admitted == Tri::kAll) {
    full_scores(p, at, own.scores);
  } else {
    at.keys = partial_scores(p, at, own.scores);
  }
  weigh<Product, kTileKv, kValueWidth>(at.rows, at.keys, own.scores.x, own.scores.most, own.largest + row,
                                       own.total + row * kLanes, o, own.weights);
  drop_weights<kTileKv>(Product{}, own.kept, at.i, at.j, at.rows, at.keys, own.weights);
  const Word* values = tile.values;
  const bool contain = admitted == Tri::kSome && tile.magnitude >= kInfinityBits;  // 0 times NaN or Inf is NaN
  if (contain) {
    copy_finite<Product>(own.finite, values, kTileWords * kValueWidth);
    values = own.finite;
  }
  multiply_values(at.rows, at.keys, own.weights, values + first * kKeyPanel / Product::kDepth * kValuePanel, o);
  if (contain) {
    const int key = first * kKeyPanel;
    add_nonfinite<Product, kTileKv, kValuePanels, kValuePanel>(at.rows, key, key + at.keys, own.weights,
                                                               own.scores.admitted, tile.values, o);
  }
}

// Writes the rows of one head of an item, which start at `row` in the scratch; of scaled ones what is not finite yet.
void write_rows(const ForwardParams& p, const Item& item, int32_t h, int row, float value_scale, const Scratch& own) {
  float* const lse = p.lse + (item.b * p.shape.heads + h) * p.shape.q_len + item.i;
  for (int32_t r = 0; r < item.rows; ++r, ++row) {
    const float total = sum_lanes(load(own.total + row * kLanes));
    const float factor = 1.0f / (total * value_scale);
    Element* const o = const_cast<Element*>(row_at(p.o, item.b, item.i + r, h));
    for (int d = 0; d < kValueDim; d += kLanes) {
      Element* const to = o + d * p.o.stride_d;
      // A row without keys is zeros, and so is one that all are shut out of, even if their values are no numbers.
      const vf sum = load(own.o + row * kValueWidth + d);
      vf x = total == 0.0f ? vf{} : sum * factor;
      // A mean is no larger than all that it is of, however their weights were rounded.
      if (value_scale != 1.0f) x = sum - sum == 0.0f ? within(largest(to), x) : x;
      x *= p.dropout.factor;
      if (value_scale != 1.0f) {
        const vf before = load_floats(to, p.o.stride_d, kValueDim - d);
        x = before - before == 0.0f ? before : x;
      }
      store_floats(to, p.o.stride_d, kValueDim - d, x);
    }
    lse[r] = own.largest[row] + log(total);
  }
}

// Computes an item whole, from its key head's packed tiles, or packing each as it comes and multiplying V by
// value_scale. Returns the largest magnitude of V met.
uint32_t attend(const ForwardParams& p, const Item& item, const KeyTile* packed, float value_scale, Scratch& own) {
  Ranges keys = Ranges::nothing();
  for (int32_t g = 0; g < item.heads; ++g) {
    const int row = g * item.rows;
    const Tile<Element> q{row_at(p.q, item.b, item.i, item.h + g), p.q.stride_s, p.q.stride_d, item.rows, kHeadDim};
    pack_rows<Product>(own.q + row * kRowWords, item.rows, kRowWords * Product::kDepth, q);
    for (int32_t r = row; r < row + item.rows; ++r) {
      own.largest[r] = -kInfinity;
      store(own.total + r * kLanes, vf{});
    }
    keys = unite(keys, key_ranges(p, Block{item.b, item.h + g, item.i, item.rows, 0, 0}));
  }
  std::memset(own.o, 0, sizeof(float) * item.heads * item.rows * kValueWidth);

  uint32_t magnitude = 0;
  each_tile(keys, kTileKv, [&](int64_t n) {
    const int32_t j = static_cast<int32_t>(n * kTileKv);
    const KeyTile* tile = nullptr;
    for (int32_t g = 0; g < item.heads; ++g) {
      const int32_t h = item.h + g;
      const Tri admitted = tile_test(p, Block{item.b, h, item.i, item.rows, j, kTileKv});
      if (admitted == Tri::kNone) continue;
      own.kept.draw(p.dropout, item.b * p.shape.heads + h, item.i, item.rows, j, kTileKv);
      if (tile == nullptr) {
        tile = packed + n;
        if (packed == nullptr) {
          pack_tile(p, item.b, item.hk, j, own.tile);
          if (value_scale != 1.0f) scale_words(Product{}, own.tile.values, kTileWords * kValueWidth, value_scale);
          tile = &own.tile;
        }
        if (magnitude < tile->magnitude) magnitude = tile->magnitude;
      }
      for (int32_t r = 0; r < item.rows; r += kRows) {
        const int32_t rows = item.rows - r < kRows ? item.rows - r : kRows;
        attend_block(p, Block{item.b, h, item.i + r, rows, j, kTileKv}, admitted, *tile, g * item.rows + r, own);
      }
    }
  });
  for (int32_t g = 0; g < item.heads; ++g) write_rows(p, item, item.h + g, g * item.rows, value_scale, own);
  return magnitude;
}

// How a call is cut. Its workspace is a Scratch for each thread, then, if keys are packed before, all their tiles.
struct Layout {
  Items items;
  int64_t tiles;  // of a key head
  bool packs;

  explicit Layout(const ForwardParams& p)
      : items(p.shape, p.pool->threads, kTileQ),
        tiles((p.shape.kv_len + kTileKv - 1) / kTileKv),
        packs(items.readers() > kPackReaders) {}
};

}  // namespace
}  // namespace fagen

extern "C" int64_t fagen_dropout_d64_forward_workspace(const fagen::ForwardParams* params) {
  using namespace fagen;
  const Layout layout(*params);
  const int64_t packed = layout.packs ? params->shape.batch * params->shape.kv_heads * layout.tiles : 0;
  return params->pool->threads * int64_t{sizeof(Scratch)} + packed * int64_t{sizeof(KeyTile)};
}

extern "C" void fagen_dropout_d64_forward(const fagen::ForwardParams* params) {
  using namespace fagen;
  const ForwardParams& p = *params;
  const Layout layout(p);
  Scratch* const scratch = static_cast<Scratch*>(p.workspace);
  KeyTile* const packed = layout.packs ? reinterpret_cast<KeyTile*>(scratch + p.pool->threads) : nullptr;
  if (layout.packs)
    share(*p.pool, p.shape.batch * p.shape.kv_heads * layout.tiles, [&](int64_t n, int32_t) {
      const int64_t key_head = n / layout.tiles;
      pack_tile(p, key_head / p.shape.kv_heads, key_head % p.shape.kv_heads, n % layout.tiles * kTileKv, packed[n]);
    });
  share(*p.pool, layout.items.count, [&](int64_t n, int32_t thread) {
    const Item item = layout.items.at(n);
    const KeyTile* const tiles = packed ? packed + (item.b * p.shape.kv_heads + item.hk) * layout.tiles : nullptr;
    // Where values are so large that their sum may overflow before it is divided, they are taken again, scaled down.
    // That gives what did overflow, and no more: scaling may lose what is small.
    if (attend(p, item, tiles, 1.0f, scratch[thread]) >= kLargeBits)
      attend(p, item, nullptr, kValueScale, scratch[thread]);
  });
}

extern "C" void fagen_dropout_d64_tile_counts(const fagen::ForwardParams* params, fagen::TileCounts* counts) {
  using namespace fagen;
  const ForwardParams& p = *params;
  const int64_t tiles = (p.shape.kv_len + kTileKv - 1) / kTileKv;
  const int64_t parts = (p.shape.q_len + kTileQ - 1) / kTileQ;
  *counts = {p.shape.batch * p.shape.heads * parts * tiles, 0, 0, 0};
  for (int64_t n = 0; n < p.shape.batch * p.shape.heads * parts; ++n) {
    const int32_t b = static_cast<int32_t>(n / parts / p.shape.heads);
    const int32_t h = static_cast<int32_t>(n / parts % p.shape.heads);
    const int32_t i = static_cast<int32_t>(n % parts * kTileQ);
    const int32_t rows = static_cast<int32_t>(least(p.shape.q_len - i, kTileQ));
    each_tile(key_ranges(p, Block{b, h, i, rows, 0, 0}), kTileKv, [&](int64_t tile) {
      const Block at{b, h, i, rows, static_cast<int32_t>(tile * kTileKv), kTileKv};
      const Tri admitted = tile_test(p, at);
      counts->full += admitted == Tri::kAll;
      counts->partial += admitted == Tri::kSome;
      if (admitted == Tri::kSome) counts->empty += !admits_any(p, at);
    });
  }
}
