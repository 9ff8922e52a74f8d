// The running softmax of a warp's rows, in registers. A lane holds, of kRowTiles tiles of 16 rows, the rows lane / 4 and
// lane / 4 + 8 (`half` 0 and 1), and of each row a quarter of the columns: those that mma.sync gives it.
//
// Weights are powers of two, 2^(x · unit - reference), with x · unit never rounded alone: of scores of any magnitude the
// differences count. The reference is the largest x · unit so far, rounded once, plus `shift`; what the rounding leaves
// is a factor of the whole row, and cancels.
#pragma once
#include "fagen/cuda/math.h"
#include "fagen/ptx/math.h"

namespace fagen {
namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// The sum and the largest of a row, over the four lanes that share it.
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

template <int kRowTiles>
struct Softmax {
  float reference[kRowTiles][2];
  float total[kRowTiles][2];  // a lane's own part

  // Rows that have seen nothing.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) reference[r][half] = -kInfinity, total[r][half] = 0.0f;
  }

  // Rows that have seen a logit that takes weight to no value.
  __device__ __forceinline__ void start(float sink, float shift) {
    const float first = sink * kLog2e + shift;
    const float weight = sink == -kInfinity ? 0.0f : ptx::ex2(fmaf(sink, kLog2e, -first));
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        reference[r][half] = first;
        total[r][half] = threadIdx.x % 4 == 0 ? weight : 0.0f;
      }
  }

  // Takes in scores x, leaves their weights in their place, and brings o, the sums so far, to the new reference.
  template <int kKeyTiles, int kValueTiles>
  __device__ __forceinline__ void weigh(float (&x)[kRowTiles][kKeyTiles][4], float (&o)[kRowTiles][kValueTiles][4],
                                        float unit, float shift) {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float most[2] = {-kInfinity, -kInfinity};
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) most[e / 2] = fmaxf(most[e / 2], x[r][n][e]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float now = fmaxf(reference[r][half], largest_of_row(most[half]) * unit + shift);
        const float base = now == -kInfinity ? 0.0f : now;  // no key has a score yet: all weights are 0 by any
        const float decay = ptx::ex2(reference[r][half] - base);
        reference[r][half] = now;
        float sum = total[r][half] * decay;
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) o[r][n][2 * half] *= decay, o[r][n][2 * half + 1] *= decay;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            x[r][n][e] = ptx::ex2(fmaf(x[r][n][e], unit, -base));
            sum += x[r][n][e];
          }
        total[r][half] = sum;
      }
    }
  }
};

}  // namespace
}  // namespace fagen
