// Gradients of params, which many threads add to. Nothing is added outside the extents, nor to one that is not wanted.
#pragma once
#include "fagen/params.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// Where an element is among the others; -1 outside the extents.
template <int rank>
__device__ __forceinline__ int64_t place_of(const ArrayView& view, const int64_t (&index)[rank > 0 ? rank : 1]) {
  if (view.data == nullptr) return -1;
  int64_t offset = 0;
#pragma unroll
  for (int axis = 0; axis < rank; ++axis) {
    if (index[axis] < 0 || index[axis] >= view.size[axis]) return -1;
    offset += index[axis] * view.stride[axis];
  }
  return offset;
}

template <int rank>
class Gradient {
 public:
  explicit __device__ __forceinline__ Gradient(const ArrayView& view) : view_(view) {}

  template <class... Index>
  __device__ __forceinline__ void add(float g, Index... index) const {
    const int64_t where[rank > 0 ? rank : 1] = {static_cast<int64_t>(index)...};
    const int64_t place = place_of<rank>(view_, where);
    if (place >= 0) ptx::add_global(static_cast<float*>(view_.data) + place, g);
  }

 private:
  const ArrayView& view_;
};

}  // namespace
}  // namespace fagen
