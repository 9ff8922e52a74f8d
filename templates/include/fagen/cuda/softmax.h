// The running softmax of a warp's rows, in registers. A lane holds, of kRowTiles tiles of 16 rows, the rows lane / 4 and
// lane / 4 + 8 (`half` 0 and 1), and of each row a quarter of the columns: those that mma.sync gives it.
//
// Weights are powers of two, 2^((x · unit - reference) · turn), one of the two factors being 1. The reference is the largest
// x · unit so far, rounded once, plus `shift`. Where x is q · k alone, `turn` is 1 and x · unit is not rounded: what
// rounding the reference leaves is a factor of the whole row, and cancels as long as weights can hold it, up to scores of
// 1e8. What is changed or added to is as often as not larger (-1e9 shuts a key out): `unit` is 1, and nothing is left.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/params.h"
#include "fagen/ptx/math.h"

namespace fagen {
namespace {

constexpr float kLn2 = 0.693147180559945309f;
// The reference of a row that has seen nothing: finite, so that scores of -inf get the weight 0 by it.
constexpr float kLowest = -3.402823466e38f;

// The sum and the largest of a row, over the four lanes that share it.
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

constexpr float kSlack = 8.0f;  // weights are 2^kSlack at most, beside 2^-shift

// Of scores: what makes them exponents of 2, and what is added to the largest of a row.
struct Scale {
  float unit, turn, shift;

  __device__ __forceinline__ float exponent(float x, float reference) const {
    // Not joined with the product that x may be: the reference is of x as it was rounded.
    return turn == 1.0f ? fmaf(x, unit, -reference) : __fsub_rn(x, reference) * turn;
  }
};

template <int kRowTiles>
struct Softmax {
  float reference[kRowTiles][2];
  float total[kRowTiles][2];  // a lane's own part

  // Rows that have seen nothing.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) reference[r][half] = kLowest, total[r][half] = 0.0f;
  }

  // Rows that have seen a logit that takes weight to no value. A sink of inf, beside a finite reference, leaves all others
  // none: `total` is inf, as it is NaN of NaN.
  __device__ __forceinline__ void start(float sink, Scale scale) {
    const float first = fminf(fmaxf(sink + scale.shift, kLowest), -kLowest);
    const float weight = ptx::ex2(scale.exponent(sink, first));  // 0 of a sink of -inf
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reference[r][half] = first;
        total[r][half] = threadIdx.x % 4 == 0 ? weight : 0.0f;
      }
  }

  // Takes in scores x: brings o, the sums so far, to a reference that suits them too. It need not be the largest: while
  // none of the warp's rows has grown by more than kSlack, all is left as it is (the idea is FlashAttention-4's).
  template <int kKeyTiles, int kValueTiles>
  __device__ __forceinline__ void rescale(const float (&x)[kRowTiles][kKeyTiles][4], float (&o)[kRowTiles][kValueTiles][4],
                                          Scale scale) {
    float most[kRowTiles][2];
    bool grown = false;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float largest = -kInfinity;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) largest = fmaxf(fmaxf(largest, x[r][n][2 * half]), x[r][n][2 * half + 1]);
        most[r][half] = largest_of_row(largest) * scale.unit + scale.shift;
        grown |= (most[r][half] - reference[r][half]) * scale.turn > kSlack;
      }
    if (!__any_sync(~0u, grown)) return;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float now = fmaxf(reference[r][half], most[r][half]);
        const float decay = ptx::ex2((reference[r][half] - now) * scale.turn);
        reference[r][half] = now;
        total[r][half] *= decay;
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) o[r][n][2 * half] *= decay, o[r][n][2 * half + 1] *= decay;
      }
  }

  // From a score of a row to its weight.
  __device__ __forceinline__ float weight(float score, int r, int half, Scale scale) {
    const float weight = ptx::ex2(scale.exponent(score, reference[r][half]));
    total[r][half] += weight;
    return weight;
  }
};

}  // namespace
}  // namespace fagen
