// A run-time input of an expression. Every access is checked against the extents: a read outside gives 0 or false and
// touches no memory.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fagen/bounds.h"
#include "fagen/params.h"

namespace fagen {
namespace {

using bf16 = __nv_bfloat16;
using f16 = __half;

// What an element in memory is to an expression: a float, an integer or a truth value.
__device__ __forceinline__ float value_of(float x) { return x; }
__device__ __forceinline__ float value_of(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float value_of(f16 x) { return __half2float(x); }
__device__ __forceinline__ int32_t value_of(int32_t x) { return x; }
__device__ __forceinline__ int64_t value_of(int64_t x) { return x; }
__device__ __forceinline__ bool value_of(bool x) { return x; }

template <class T>
struct Plain {
  using type = T;
};
template <class T>
struct Plain<const T> {
  using type = T;
};

// What the elements of a part of an array can be: an interval; of truth values, 0 and 1.
constexpr int64_t kHullLimit = 1 << 14;  // larger parts are not looked through
__device__ __forceinline__ Span hull_of(int32_t low, int32_t high, bool) { return {low, high}; }
__device__ __forceinline__ Span hull_of(int64_t low, int64_t high, bool) { return {low, high}; }
__device__ __forceinline__ Span hull_of(bool low, bool high, bool) { return {low, high}; }
__device__ __forceinline__ Reals hull_of(float low, float high, bool nan) {
  return nan ? unknown_real() : Reals{low, high, false};
}
template <class Scalar>
using Hull = decltype(hull_of(Scalar{}, Scalar{}, false));

__device__ __forceinline__ Span unknown_element(int32_t) { return {INT32_MIN, INT32_MAX}; }
__device__ __forceinline__ Span unknown_element(int64_t) { return {INT64_MIN, INT64_MAX}; }
__device__ __forceinline__ Span unknown_element(bool) { return {0, 1}; }
__device__ __forceinline__ Reals unknown_element(float) { return unknown_real(); }

template <class T, int rank>
struct Array {
  using Value = typename Plain<T>::type;
  using Scalar = decltype(value_of(Value{}));
  static constexpr int kAxes = rank > 0 ? rank : 1;

  const ArrayView& view;

  explicit __device__ __forceinline__ Array(const ArrayView& seen) : view(seen) {}

  // Where an element is, or nullptr outside the extents.
  __device__ __forceinline__ const Value* find(const int64_t (&index)[kAxes]) const {
    int64_t offset = 0;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
      if (index[axis] < 0 || index[axis] >= view.size[axis]) return nullptr;
      offset += index[axis] * view.stride[axis];
    }
    return static_cast<const Value*>(view.data) + offset;
  }

  template <class... Index>
  __device__ __forceinline__ Scalar load(Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    const int64_t where[kAxes] = {static_cast<int64_t>(index)...};
    const Value* const found = find(where);
    return found ? value_of(*found) : Scalar{};
  }

  // Elements along one axis, by how many steps they are from one of them.
  struct Line {
    const Value* data;  // of step 0, which may be outside
    int64_t stride;
    int32_t begin, end;  // of the steps inside the extents

    // Whether steps 0 to count - 1 are inside, one after the other in memory.
    __device__ __forceinline__ bool holds(int32_t count) const { return stride == 1 && begin <= 0 && count <= end; }
    // That of a step, which is known to be held or not.
    template <bool kHeld>
    __device__ __forceinline__ Scalar at(int32_t step) const {
      if constexpr (kHeld) return value_of(data[step]);
      return begin <= step && step < end ? value_of(data[step * stride]) : Scalar{};
    }
  };

  // Along axis `kAxis`, from an index on.
  template <int kAxis, class... Index>
  __device__ __forceinline__ Line line(Index... index) const {
    static_assert(sizeof...(Index) == rank && kAxis < rank, "one index for each axis");
    const int64_t where[kAxes] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    bool outside = false;
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) {
      outside = outside || (axis != kAxis && (where[axis] < 0 || where[axis] >= view.size[axis]));
      offset += where[axis] * view.stride[axis];
    }
    const auto step_to = [&](int64_t at) { return static_cast<int32_t>(greatest(least(at - where[kAxis], INT32_MAX), 0)); };
    return {static_cast<const Value*>(view.data) + offset, view.stride[kAxis], step_to(0), outside ? 0 : step_to(view.size[kAxis])};
  }

  // What a box of indexes can read, 0 or false among it where the box reaches outside the extents.
  template <class... Index>
  __device__ __forceinline__ Hull<Scalar> hull(Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    if constexpr (rank == 0) {
      const Scalar x = value_of(*static_cast<const Value*>(view.data));
      return hull_of(x, x, x != x);
    } else {
      const Span box[rank] = {Span(index)...};
      const Part part(*this, box);
      const Hull<Scalar> zero = hull_of(Scalar{}, Scalar{}, false);
      if (part.elements > kHullLimit) return unknown_element(Scalar{});
      if (part.elements == 0) return zero;
      Scalar low{}, high{};
      bool nan = false, first = true;
      each(part, [&](Scalar x) {
        low = first || x < low ? x : low;
        high = first || x > high ? x : high;
        nan |= x != x;
        first = false;
      });
      const Hull<Scalar> found = hull_of(low, high, nan);
      return part.outside ? join(zero, found) : found;
    }
  }

  // The integers that a box of indexes can read, 0 among them where the box reaches outside the extents.
  template <class... Index>
  __device__ __forceinline__ Values values(Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    const Span box[rank] = {Span(index)...};
    const Part part(*this, box);
    Values found;
    if (part.outside) found.add(0);
    if (part.elements > kHullLimit) {
      found.add(unknown_element(Scalar{}));
      return found;
    }
    if (part.elements == 0) return found;
    int64_t last = 0;
    bool first = true;
    each(part, [&](Scalar x) {
      const int64_t next = x;
      if (first || next != last) found.add(next);
      last = next, first = false;
    });
    return found;
  }

 private:
  // The part of a box of indexes that is inside the extents.
  struct Part {
    int64_t first[kAxes], count[kAxes], elements = 1;
    bool outside = false;  // the box has indexes outside

    __device__ __forceinline__ Part(const Array& array, const Span (&box)[kAxes]) {
#pragma unroll
      for (int axis = 0; axis < rank; ++axis) {
        first[axis] = greatest(box[axis].lo, 0);
        count[axis] = greatest(least(box[axis].hi, array.view.size[axis] - 1) - first[axis] + 1, 0);
        outside = outside || count[axis] != box[axis].hi - box[axis].lo + 1;
      }
#pragma unroll
      for (int axis = 0; axis < rank; ++axis)
        elements = count[axis] > kHullLimit / greatest(elements, 1) ? kHullLimit + 1 : elements * count[axis];
#pragma unroll
      for (int axis = 0; axis < rank; ++axis)
        if (count[axis] == 0) elements = 0;
    }
  };

  // Visits the elements of a part that has some, along the last axis first: several are read at once, where a read takes
  // as long as tens of instructions.
  template <class Visit>
  __device__ __forceinline__ void each(const Part& part, Visit visit) const {
    const Value* line = static_cast<const Value*>(view.data);
    int64_t seen[kAxes] = {};
#pragma unroll
    for (int axis = 0; axis < rank; ++axis) line += part.first[axis] * view.stride[axis];
    for (bool more = true; more;) {
      const Value* at = line;
#pragma unroll 8
      for (int64_t left = part.count[kAxes - 1]; left > 0; --left, at += view.stride[kAxes - 1]) visit(value_of(*at));
      more = false;
#pragma unroll
      for (int axis = rank - 2; axis >= 0; --axis) {
        if (more) continue;
        line += view.stride[axis];
        more = ++seen[axis] < part.count[axis];
        if (!more) line -= part.count[axis] * view.stride[axis], seen[axis] = 0;
      }
    }
  }
};

}  // namespace
}  // namespace fagen
