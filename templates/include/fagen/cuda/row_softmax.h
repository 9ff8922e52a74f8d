// The running softmax of a warp's 16 rows where products run beside it: a lane's two rows, lane / 4 and lane / 4 + 8
// (`half` 0 and 1), are gone through one after the other, so that one's maximum hides behind the other's exponentials.
// The numbers are those of softmax.h.
#pragma once
#include "fagen/cuda/softmax.h"

namespace fagen {
namespace {

class RowSoftmax {
 public:
  float reference[2], total[2];  // of total a lane's own part

  // Rows that have seen nothing.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int half = 0; half < 2; ++half) reference[half] = kLowest, total[half] = 0.0f;
  }

  // Rows that have seen a logit that takes weight to no value.
  __device__ __forceinline__ void start(float sink, Scale scale) {
    const float first = fmaxf(sink + scale.shift, kLowest);
    const float weight = ptx::ex2(scale.exponent(sink, first));  // 0 of a sink of -inf
#pragma unroll
    for (int half = 0; half < 2; ++half) reference[half] = first, total[half] = threadIdx.x % 4 == 0 ? weight : 0.0f;
  }

  // Scores become weights. Sums so far are then to be multiplied by `rescale`, if `grown()`.
  template <int kKeyTiles>
  __device__ __forceinline__ void weigh(float (&x)[kKeyTiles][4], Scale scale) {
    weigh_row<0>(x, scale);
    weigh_row<1>(x, scale);
  }

  // Whether a row of the warp has got another reference.
  __device__ __forceinline__ bool grown() const { return grown_; }

  template <int kValueTiles>
  __device__ __forceinline__ void rescale(float (&o)[kValueTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] *= decay_[e / 2];
  }

 private:
  template <int kHalf, int kKeyTiles>
  __device__ __forceinline__ void weigh_row(float (&x)[kKeyTiles][4], Scale scale) {
    float even = -kInfinity, odd = -kInfinity;
#pragma unroll
    for (int n = 0; n < kKeyTiles; n += 2) {
      even = fmaxf(fmaxf(even, x[n][2 * kHalf]), x[n][2 * kHalf + 1]);
      odd = fmaxf(fmaxf(odd, x[n + 1][2 * kHalf]), x[n + 1][2 * kHalf + 1]);
    }
    const float most = largest_of_row(fmaxf(even, odd)) * scale.unit + scale.shift;
    const float before = reference[kHalf];
    // While none of the warp's rows has grown by more than kSlack, all is left as it is (as FlashAttention-4 does).
    const bool grown = __any_sync(~0u, (most - before) * scale.turn > kSlack);
    const float now = grown ? fmaxf(before, most) : before;
    decay_[kHalf] = ptx::ex2((before - now) * scale.turn);
    reference[kHalf] = now;
    grown_ = kHalf == 0 ? grown : grown_ || grown;
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      low += x[n][2 * kHalf] = ptx::ex2(scale.exponent(x[n][2 * kHalf], now));
      high += x[n][2 * kHalf + 1] = ptx::ex2(scale.exponent(x[n][2 * kHalf + 1], now));
    }
    total[kHalf] = fmaf(total[kHalf], decay_[kHalf], low + high);
  }

  float decay_[2];
  bool grown_;
};

}  // namespace
}  // namespace fagen
