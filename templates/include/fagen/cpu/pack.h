// Copies tiles of q, k, v, dO into the shapes that gemm.h multiplies. A source tile is `rows` rows (queries or keys)
// of `width` elements (the head dim), any strides, any alignment; what lies outside it is never read, and the
// padding of the destination is zero.
//
//   pack_rows        A of a product along the head dim:    dst[padded_rows][words(padded_width)]
//   pack_transposed  B of a product along the head dim:    dst[panel][words(padded_width)][panel of rows]
//   pack_panels      B of a product along the rows:        dst[panel][words(padded_rows)][panel of the width]
//
// where the words of pack_rows' padded_width are whole vectors.
// A word is one element as float32 (F32) or two that are adjacent along the product's inner dimension (Bf16Pairs);
// words(n) = n / Product::kDepth. pack_rows and pack_panels return the largest magnitude they met, as the bits of a
// float32: at least kInfinityBits if an element is Inf or NaN.
#pragma once
#include <cstring>

#include "fagen/cpu/element.h"
#include "fagen/cpu/gemm.h"

namespace fagen {
namespace {

constexpr uint32_t kInfinityBits = 0x7f800000u;

template <class T>
struct Tile {
  const T* data;
  int64_t stride_row, stride_d;
  int rows, width;
};

// Asks for rows [r, r + rows) of a tile: rows lie far apart, which the hardware does not foresee.
template <class T>
inline void prefetch_rows(const Tile<T>& tile, int r, int rows) {
  constexpr int kLine = 64 / sizeof(T);
  for (int end = r + rows < tile.rows ? r + rows : tile.rows; r < end; ++r)
    for (int d = 0; d < tile.width; d += kLine) __builtin_prefetch(tile.data + r * tile.stride_row + d * tile.stride_d);
}

inline vu larger_bits(vu a, vu b) { return a > b ? a : b; }
inline uint32_t largest_bits(vu v) {
  uint32_t most = 0;
  for (int lane = 0; lane < kLanes; ++lane) most = most > v[lane] ? most : v[lane];
  return most;
}

// kLanes words along the head dim of row r from element d on.
template <class T>
inline vf words_along(F32, const Tile<T>& tile, int r, int d) {
  if (r >= tile.rows || d >= tile.width) return vf{};
  return load_floats(tile.data + r * tile.stride_row + d * tile.stride_d, tile.stride_d, tile.width - d);
}
// kLanes words, each of row r (and, for pairs, r + 1) at elements d, d + 1, ...
template <class T>
inline vf words_across(F32, const Tile<T>& tile, int r, int d) {
  return words_along(F32{}, tile, r, d);
}
inline vu magnitude(F32, vf words) { return (vu)words & 0x7fffffffu; }

#if defined(__AVX512BF16__)
inline vu words_along(Bf16Pairs, const Tile<bf16>& tile, int r, int d) {
  vu words = {};
  if (r >= tile.rows || d >= tile.width) return words;
  const bf16* p = tile.data + r * tile.stride_row + d * tile.stride_d;
  const int count = tile.width - d;
  if (tile.stride_d == 1 && count >= 2 * kLanes) {
    std::memcpy(&words, p, sizeof words);
  } else {
    bf16 lanes[2 * kLanes] = {};
    for (int lane = 0; lane < (count < 2 * kLanes ? count : 2 * kLanes); ++lane) lanes[lane] = p[lane * tile.stride_d];
    std::memcpy(&words, lanes, sizeof words);
  }
  return words;
}
inline vu words_across(Bf16Pairs, const Tile<bf16>& tile, int r, int d) {
  const vu low = (vu)words_along(F32{}, tile, r, d) >> 16;
  return low | (vu)words_along(F32{}, tile, r + 1, d);
}
inline vu magnitude(Bf16Pairs, vu words) { return larger_bits(words << 16 & 0x7fff0000u, words & 0x7fff0000u); }
#endif

template <class Product, class T>
inline uint32_t pack_rows(typename Product::Word* dst, int padded_rows, int padded_width, const Tile<T>& tile) {
  const int words = padded_width / Product::kDepth;
  vu most = {};
  for (int r = 0; r < padded_rows; ++r)
    for (int w = 0; w < words; w += kLanes) {
      const auto v = words_along(Product{}, tile, r, w * Product::kDepth);
      most = larger_bits(most, magnitude(Product{}, v));
      store(dst + r * words + w, v);
    }
  return largest_bits(most);
}

// Columns become rows: kLanes vectors of kLanes words.
template <class V>
inline void transpose(V (&v)[kLanes]) {
  // Interleaving the two halves log2(kLanes) times is the transposition.
  FAGEN_UNROLL
  for (int round = 1; round < kLanes; round *= 2) {
    V next[kLanes];
    FAGEN_UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
      const V a = v[i], b = v[i + kLanes / 2];
#if defined(__AVX512F__)
      next[2 * i] = shuffle<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b);
      next[2 * i + 1] = shuffle<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b);
#elif defined(__AVX2__)
      next[2 * i] = shuffle<0, 8, 1, 9, 2, 10, 3, 11>(a, b);
      next[2 * i + 1] = shuffle<4, 12, 5, 13, 6, 14, 7, 15>(a, b);
#else
      next[2 * i] = shuffle<0, 4, 1, 5>(a, b);
      next[2 * i + 1] = shuffle<2, 6, 3, 7>(a, b);
#endif
    }
    FAGEN_UNROLL
    for (int i = 0; i < kLanes; ++i) v[i] = next[i];
  }
}

// kPanel rows of the source a panel; padded_rows a multiple of it.
template <class Product, int kPanel, class T>
inline void pack_transposed(typename Product::Word* dst, int padded_rows, int padded_width, const Tile<T>& tile) {
  const int words = padded_width / Product::kDepth;
  for (int r = 0; r < padded_rows; r += kLanes) {
    prefetch_rows(tile, r + kLanes, kLanes);
    typename Product::Word* column = dst + r / kPanel * kPanel * words + r % kPanel;
    for (int w = 0; w < words; w += kLanes) {
      typename Product::Vector block[kLanes];
      FAGEN_UNROLL
      for (int i = 0; i < kLanes; ++i) block[i] = words_along(Product{}, tile, r + i, w * Product::kDepth);
      transpose(block);
      const int steps = words - w < kLanes ? words - w : kLanes;
      for (int i = 0; i < steps; ++i) store(column + (w + i) * kPanel, block[i]);
    }
  }
}

// kPanel elements of the width a panel; padded_width a multiple of it.
template <class Product, int kPanel, class T>
inline uint32_t pack_panels(typename Product::Word* dst, int padded_rows, int padded_width, const Tile<T>& tile) {
  const int steps = padded_rows / Product::kDepth;
  vu most = {};
  for (int t = 0; t < steps; ++t) {
    prefetch_rows(tile, t * Product::kDepth + 16, Product::kDepth);
    for (int d = 0; d < padded_width; d += kLanes) {
      const auto v = words_across(Product{}, tile, t * Product::kDepth, d);
      most = larger_bits(most, magnitude(Product{}, v));
      store(dst + d / kPanel * kPanel * steps + t * kPanel + d % kPanel, v);
    }
  }
  return largest_bits(most);
}

}  // namespace
}  // namespace fagen
