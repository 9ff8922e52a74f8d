// Gradients of params that many work items add to. Each item adds up its own part, and the parts are added to the
// gradient in the order of the items, whichever thread ran them.
#pragma once
#include <algorithm>

#include "fagen/params.h"

namespace fagen {
namespace {

// What indexes an axis of a param: b, h or hk alone, or anything.
enum class By { kAny, kBatch, kHead, kKeyHead };

// An array to which nothing is added if the gradient is not wanted.
inline ArrayView wanted(ArrayView gradient) {
  if (gradient.data == nullptr) gradient.size[0] = 0;
  return gradient;
}

// The part of a gradient that an item can add to, whose query heads are those of key head hk in batch b: all of an axis
// that anything indexes, but only its own b, h or hk. Sum is what the part is added up in.
template <class Sum>
class PartOfGradient {
 public:
  PartOfGradient(const ArrayView& gradient, const By (&by)[kMaxRank], const Shape& shape, int64_t b, int64_t hk)
      : gradient_(gradient) {
    const int64_t group = shape.heads / shape.kv_heads;
    for (int axis = 0; axis < kMaxRank; ++axis) {
      const int64_t first[] = {0, b, hk * group, hk};
      const int64_t count[] = {gradient.size[axis], 1, group, 1};
      first_[axis] = first[static_cast<int>(by[axis])];
      const int64_t left = gradient.size[axis] - first_[axis], most = count[static_cast<int>(by[axis])];
      count_[axis] = most < left ? most : left < 0 ? 0 : left;
    }
    if (gradient.data == nullptr) count_[0] = 0;  // not wanted
  }

  int64_t count() const { return count_[0] * count_[1] * count_[2] * count_[3]; }

  // Zeros, in `sums`, as an array that is indexed like the gradient.
  ArrayView clear(Sum* sums) const {
    std::fill_n(sums, count(), Sum{});
    ArrayView view = gradient_;
    int64_t stride = 1, first = 0;
    for (int axis = kMaxRank - 1; axis >= 0; --axis) {
      view.stride[axis] = stride;
      first += first_[axis] * stride;
      stride *= count_[axis];
    }
    view.data = count() > 0 ? sums - first : nullptr;
    return wanted(view);
  }

  void add_to_gradient(const Sum* sums) const {
    float* at[kMaxRank];  // the first element of the part, then of its planes, lines and so on
    at[0] = static_cast<float*>(gradient_.data);
    for (int axis = 0; axis < kMaxRank; ++axis) at[0] += first_[axis] * gradient_.stride[axis];
    for (int64_t a = 0; a < count_[0]; ++a, at[0] += gradient_.stride[0]) {
      at[1] = at[0];
      for (int64_t b = 0; b < count_[1]; ++b, at[1] += gradient_.stride[1]) {
        at[2] = at[1];
        for (int64_t c = 0; c < count_[2]; ++c, at[2] += gradient_.stride[2]) {
          at[3] = at[2];
          for (int64_t d = 0; d < count_[3]; ++d, at[3] += gradient_.stride[3])
            *at[3] = static_cast<float>(*at[3] + *sums++);
        }
      }
    }
  }

 private:
  ArrayView gradient_;
  int64_t first_[kMaxRank], count_[kMaxRank];
};

}  // namespace
}  // namespace fagen
