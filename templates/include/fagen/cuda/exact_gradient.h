// Gradients of params whose sums are the same in whatever order threads add to them. They become float32 numbers in the
// end: see round_gradient.
#pragma once
#include "fagen/cuda/exact_sum.h"
#include "fagen/cuda/gradient.h"

namespace fagen {
namespace {

template <int rank>
class ExactGradient {
 public:
  __device__ __forceinline__ ExactGradient(const ArrayView& view, uint64_t* sums) : view_(view), sums_(sums) {}

  template <class... Index>
  __device__ __forceinline__ void add(float g, Index... index) const {
    const int64_t where[rank > 0 ? rank : 1] = {static_cast<int64_t>(index)...};
    const int64_t place = place_of<rank>(view_, where);
    if (place >= 0) add_exactly(sums_ + place * kExactWords, g);
  }

 private:
  const ArrayView& view_;
  uint64_t* const sums_;
};

// The elements of a gradient, which are adjacent, by all threads of a grid.
__device__ __forceinline__ void round_gradient(const ArrayView& view, const uint64_t* sums) {
  if (view.data == nullptr) return;
  const int64_t elements = view.size[0] * view.size[1] * view.size[2] * view.size[3];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t n = first; n < elements; n += static_cast<int64_t>(gridDim.x) * blockDim.x)
    static_cast<float*>(view.data)[n] = value_of_exact(sums + n * kExactWords);
}

}  // namespace
}  // namespace fagen
