// A run-time input of an expression. Every access is checked against the extents: a read outside gives 0 or false and
// touches no memory.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fagen/bounds.h"
#include "fagen/cuda/lanes.h"
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

// An integer for each element, in the elements' order; and back. Of NaN there is none that counts.
__device__ __forceinline__ int32_t key_of(int32_t x) { return x; }
__device__ __forceinline__ int64_t key_of(int64_t x) { return x; }
__device__ __forceinline__ int32_t key_of(bool x) { return x; }
__device__ __forceinline__ int32_t key_of(float x) {
  const int32_t bits = __float_as_int(x);
  return bits ^ (bits >> 31 & INT32_MAX);
}
__device__ __forceinline__ int32_t element_of(int32_t key, int32_t) { return key; }
__device__ __forceinline__ int64_t element_of(int64_t key, int64_t) { return key; }
__device__ __forceinline__ bool element_of(int32_t key, bool) { return key != 0; }
__device__ __forceinline__ float element_of(int32_t key, float) { return __int_as_float(key ^ (key >> 31 & INT32_MAX)); }

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

  // What a box of indexes can read, 0 or false among it where the box reaches outside the extents. Of each lane's box; they
  // look through them together.
  template <class... Index>
  __device__ __forceinline__ Hull<Scalar> hull(Lanes lanes, Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    if constexpr (rank == 0) {
      const Scalar x = value_of(*static_cast<const Value*>(view.data));
      return hull_of(x, x, x != x);
    } else {
      const Part found = part(index...);
      const Ends ends = found.ends(lanes, kLeast);
      const Hull<Scalar> zero = hull_of(Scalar{}, Scalar{}, false);
      if (found.elements > kHullLimit) return unknown_element(Scalar{});
      if (found.elements == 0) return zero;
      const Hull<Scalar> inside = hull_of(element_of(ends.low, Scalar{}), element_of(ends.high, Scalar{}), ends.nan);
      return found.outside ? join(zero, inside) : inside;
    }
  }

  using Key = decltype(key_of(Scalar{}));
  static constexpr Key kGreatest = sizeof(Key) == 8 ? static_cast<Key>(INT64_MAX) : static_cast<Key>(INT32_MAX);
  static constexpr Key kLeast = -kGreatest - 1;

  // Of what a part holds; low > high of nothing.
  struct Ends {
    Key low, high;
    bool nan;
  };

  // The part of a box of indexes that is inside the extents.
  struct Part {
    const ArrayView& view;
    const Value* start;
    int32_t count[kAxes], elements = 1;  // kHullLimit + 1: more than that
    bool outside = false;                // the box has indexes outside, which read 0 or false

    __device__ __forceinline__ Part(const ArrayView& seen, const Span (&box)[kAxes])
        : view(seen), start(static_cast<const Value*>(seen.data)) {
#pragma unroll
      for (int axis = 0; axis < rank; ++axis) {
        const int64_t first = greatest(box[axis].lo, 0), past = least(box[axis].hi, view.size[axis] - 1) + 1;
        const int64_t all = greatest(past - first, 0);
        outside = outside || all != box[axis].hi - box[axis].lo + 1;
        count[axis] = static_cast<int32_t>(least(all, kHullLimit + 1));
        elements = least(elements * count[axis], static_cast<int32_t>(kHullLimit + 1));
        start += first * view.stride[axis];
      }
    }

    // Of the elements that are not below a key, of each lane's part: by all lanes, one part after the other, as few as
    // there are parts. Of those that are too large, and have no elements, nothing.
    __device__ __forceinline__ Ends ends(Lanes lanes, Key from) const {
      Ends own{kGreatest, kLeast, false};
      for (uint32_t left = lanes.where(elements > 0 && elements <= kHullLimit).mask(); left != 0;) {
        const int lane = __ffs(static_cast<int>(left)) - 1;
        const auto address = reinterpret_cast<uint64_t>(start);
        const uint64_t at = lanes.from(lane, address);
        const Key least_key = lanes.from(lane, from);
        bool same = at == address && least_key == from;
        int32_t size[kAxes];
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
          size[axis] = lanes.from(lane, count[axis]);
          same = same && size[axis] == count[axis];
        }
        const Ends found = look_through(lanes, reinterpret_cast<const Value*>(at), size, least_key);
        if (same) own = found;
        left &= ~lanes.where(same).mask();
      }
      return own;
    }

    // Of integers: moves x up to the least that is at least x; false if there is none.
    __device__ __forceinline__ bool next(Lanes lanes, int64_t& x) const {
      const Ends found = ends(lanes, static_cast<Key>(greatest(least(x, int64_t{kGreatest}), int64_t{kLeast})));
      const Span any = unknown_element(Scalar{});
      if (elements > kHullLimit) {
        x = greatest(x, any.lo);
        return x <= any.hi;
      }
      const bool inside = elements > 0 && found.low <= found.high && x <= any.hi, zero = outside && x <= 0;
      x = !inside ? 0 : zero ? least(found.low, int64_t{0}) : found.low;
      return inside || zero;
    }

   private:
    // Lanes have neighbours along the longest axis, several at once: a read takes as long as tens of instructions.
    __device__ __forceinline__ Ends look_through(Lanes lanes, const Value* line, const int32_t (&size)[kAxes], Key from) const {
      constexpr int kAtOnce = 4;
      int along = 0;
      int32_t longest = size[0], seen[kAxes] = {};
      int64_t stride = view.stride[0];
#pragma unroll
      for (int axis = 1; axis < rank; ++axis)
        if (size[axis] > longest) along = axis, longest = size[axis], stride = view.stride[axis];
      Ends found{kGreatest, kLeast, false};
      const int step = lanes.count();
      for (bool more = true; more;) {
        const Value* at = line + lanes.before() * stride;
        for (int32_t n = lanes.before(); n < longest; n += kAtOnce * step) {
#pragma unroll
          for (int ahead = 0; ahead < kAtOnce; ++ahead, at += step * stride) {
            const bool there = n + ahead * step < longest;
            const Scalar x = there ? value_of(*at) : Scalar{};
            const Key key = key_of(x);
            const bool counts = there && x == x && key >= from;
            found.low = counts && key < found.low ? key : found.low;
            found.high = counts && key > found.high ? key : found.high;
            found.nan |= x != x;
          }
        }
        more = false;
#pragma unroll
        for (int axis = 0; axis < rank; ++axis) {
          if (more || axis == along) continue;
          line += view.stride[axis];
          more = ++seen[axis] < size[axis];
          if (!more) line -= size[axis] * view.stride[axis], seen[axis] = 0;
        }
      }
      return {lanes.least(found.low), lanes.greatest(found.high), static_cast<bool>(lanes.where(found.nan).mask())};
    }
  };

  template <class... Index>
  __device__ __forceinline__ Part part(Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    const Span box[rank] = {Span(index)...};
    return Part(view, box);
  }
};

}  // namespace
}  // namespace fagen
