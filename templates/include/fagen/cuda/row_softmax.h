// The running softmax of a warp's 16 rows where products run beside it: a lane's two rows are lane / 4 and lane / 4 + 8
// (`half` 0 and 1). The numbers are those of softmax.h, but no largest score is looked for where none need be: the
// reference of a row's first tile does for those that follow, as long as their weights stay small against what a float
// can hold. Where one of the warp's rows outgrows that, its reference rises; and where weights overflowed, they are
// computed again, from the largest score.
#pragma once
#include "fagen/cuda/softmax.h"
#include "fagen/ptx/barrier.h"

namespace fagen {
namespace {

constexpr float kRoom = 12.0f;  // a lane's weights of a tile sum to 2^kRoom at most, beside 2^-shift
constexpr float kMost = static_cast<float>(1 << static_cast<int>(kRoom));

class RowSoftmax {
 public:
  float reference[2], total[2];  // of total a lane's own part

  // Rows that have seen nothing.
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int half = 0; half < 2; ++half) reference[half] = kLowest, total[half] = 0.0f;
    settled_ = false;
  }

  // Rows that have seen a logit that takes weight to no value. A sink of inf, beside a finite reference, leaves all others
  // none: `total` is inf, as it is NaN of NaN.
  __device__ __forceinline__ void start(float sink, Scale scale) {
    const float first = fminf(fmaxf(sink + scale.shift, kLowest), -kLowest);
    const float weight = ptx::ex2(scale.exponent(sink, first));  // 0 of a sink of -inf
#pragma unroll
    for (int half = 0; half < 2; ++half) reference[half] = first, total[half] = threadIdx.x % 4 == 0 ? weight : 0.0f;
    settled_ = false;
  }

  // Whether all of the warpgroup's rows have a reference other than kLowest, and that suits exponents.
  __device__ __forceinline__ bool settled() const { return settled_; }

  // Scores become weights, against references that suit the largest of them. Sums so far are then to be rescaled, if
  // `grown()`. `between` is done between one of a lane's rows and the other. By the four warps of a warpgroup, which meet at
  // barrier `name`: whether rows are settled decides which instructions they wait for products by, and they must be the same.
  template <int kKeyTiles, class Between>
  __device__ __forceinline__ void weigh_by_largest(float (&x)[kKeyTiles][4], Scale scale, int name, Between between) {
    by_largest<0>(x, scale);
    between();
    by_largest<1>(x, scale);
    const bool all = ptx::sync_named_and<128>(name, fminf(reference[0], reference[1]) > kLowest && suit(scale));
    settled_ = __all_sync(~0u, all);  // which the compiler knows to be one for all lanes
  }
  // The same by a warp alone, whose rows are settled.
  template <int kKeyTiles>
  __device__ __forceinline__ void weigh_by_largest(float (&x)[kKeyTiles][4], Scale scale) {
    by_largest<0>(x, scale);
    by_largest<1>(x, scale);
  }

  // The same of one of a lane's rows, against its reference as it is. What they sum to; of both rows that is to be given
  // to `take`.
  template <int kHalf, int kKeyTiles>
  __device__ __forceinline__ float weigh(float (&x)[kKeyTiles][4], Scale scale) const {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      low += x[n][2 * kHalf] = ptx::ex2(scale.exponent(x[n][2 * kHalf], reference[kHalf]));
      high += x[n][2 * kHalf + 1] = ptx::ex2(scale.exponent(x[n][2 * kHalf + 1], reference[kHalf]));
    }
    return low + high;
  }

  // The same of exponents that are less the reference already.
  template <int kHalf, int kKeyTiles>
  __device__ __forceinline__ float weigh(float (&x)[kKeyTiles][4]) const {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      low += x[n][2 * kHalf] = ptx::ex2(x[n][2 * kHalf]);
      high += x[n][2 * kHalf + 1] = ptx::ex2(x[n][2 * kHalf + 1]);
    }
    return low + high;
  }

  // Adds what weights of a tile sum to, if the references suit them: what is more than `most` asks for others, and of NaN
  // nothing is known.
  __device__ __forceinline__ bool take(const float (&sums)[2], float most, Scale scale) {
    if (__any_sync(~0u, !(sums[0] <= most && sums[1] <= most && suit(scale)))) return false;
    total[0] += sums[0], total[1] += sums[1];
    return true;
  }

  // Else the references rise, and weights and sums so far are brought to them. False: weights have been lost.
  template <int kKeyTiles>
  __device__ __forceinline__ bool raise(float (&x)[kKeyTiles][4], const float (&sums)[2], float most, Scale scale) {
    const bool lost = !(sums[0] < kOverflown) || !(sums[1] < kOverflown) || !suit(scale);
    if (__any_sync(~0u, lost)) return false;
    grown_ = true;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = largest_of_row(sums[half]);
      const float now = reference[half] + (sum > most ? (log2f(sum) + scale.shift * scale.turn) / scale.turn : 0.0f);
      decay_[half] = ptx::ex2((reference[half] - now) * scale.turn);
      reference[half] = now;
      total[half] = (total[half] + sums[half]) * decay_[half];
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) x[n][2 * half] *= decay_[half], x[n][2 * half + 1] *= decay_[half];
    }
    return true;
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
  // Exponents that are less the reference as they are made (turn is not 1) are less what rounding its power of 2 leaves:
  // a factor of one tile's weights and not of another's. Up to here it is below 2^-12, as that of weights to come is.
  static constexpr float kLargest = 4096.0f;
  __device__ __forceinline__ bool suit(Scale scale) const {
    return scale.turn == 1.0f || fmaxf(fabsf(reference[0]), fabsf(reference[1])) <= kLargest;
  }

  // Sums from which on weights count as lost. What a smaller one raises a reference by, with a shift of kRoom and the 29 bits
  // of kMaxLength at most, is still a factor that a float32 holds.
  static constexpr float kOverflown = 0x1p64f;
  static_assert(64 + kRoom + 29 < 126 && kMaxLength >> 29 == 0, "normal numbers");

  template <int kHalf, int kKeyTiles>
  __device__ __forceinline__ void by_largest(float (&x)[kKeyTiles][4], Scale scale) {
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
  bool grown_, settled_;
};

}  // namespace
}  // namespace fagen
