// Tiles of float32, rounded to bf16 and put in words as A of a product of pairs. `x` has rows kStride apart, `columns`
// is a multiple of 2 kLanes.
#pragma once
#include "fagen/cpu/gemm.h"

namespace fagen {
namespace {

typedef uint16_t Halves __attribute__((vector_size(4 * kLanes)));

// The halves of `first` rounded, then those of `second`.
inline Halves round_pair(vf first, vf second) { return (Halves)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first); }

// words[row][kStride / 2]: a word holds adjacent columns.
template <int kStride>
inline void pair_columns(int rows, int columns, const float* x, uint32_t* words) {
  for (int r = 0; r < rows; ++r, x += kStride, words += kStride / 2)
    for (int n = 0; n < columns; n += 2 * kLanes)
      store(words + n / 2, (vu)round_pair(load(x + n), load(x + n + kLanes)));
}

// words[row / 2][kStride]: a word holds adjacent rows, of which there are an even number.
template <int kStride>
inline void pair_rows(int rows, int columns, const float* x, uint32_t* words) {
  for (int r = 0; r < rows; r += 2, x += 2 * kStride, words += kStride)
    for (int n = 0; n < columns; n += kLanes) {
      const Halves both = round_pair(load(x + n), load(x + n + kStride));
      store(words + n, (vu)shuffle<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27,
                                   12, 28, 13, 29, 14, 30, 15, 31>(both, both));
    }
}

}  // namespace
}  // namespace fagen
