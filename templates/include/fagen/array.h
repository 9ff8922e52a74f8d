// A run-time input of an expression, or its gradient. Every access is checked against the extents: a read outside
// gives 0 or false, an addition outside does nothing, and neither touches memory.
#pragma once
#include "fagen/bounds.h"
#include "fagen/cpu/element.h"
#include "fagen/cpu/math.h"
#include "fagen/params.h"

namespace fagen {
namespace {

// What an element in memory is to an expression: a float, an integer or a truth value; one (`Scalar`) or kLanes (`Vector`).
inline float value_of(float x) { return x; }
inline double value_of(double x) { return x; }  // a sum
inline float value_of(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline float value_of(f16 x) { return widen_f16(vu{} + x.bits)[0]; }
inline int32_t value_of(int32_t x) { return x; }
inline int64_t value_of(int64_t x) { return x; }
inline bool value_of(bool x) { return x; }

template <class Scalar>
struct VectorOf;
template <>
struct VectorOf<float> {
  using type = vf;
};
template <>
struct VectorOf<double> {
  using type = vd;
};
template <>
struct VectorOf<int32_t> {
  using type = vi;
};
template <>
struct VectorOf<int64_t> {
  using type = vl;
};
template <>
struct VectorOf<bool> {
  using type = vi;
};

template <class T>
struct ElementOf {
  using Scalar = decltype(value_of(T{}));
  using Vector = typename VectorOf<Scalar>::type;
  // A truth value in a lane is 0 or -1.
  static auto lane(T x) {
    if constexpr (sizeof(Scalar) == 1) {
      return -static_cast<int32_t>(x);
    } else {
      return value_of(x);
    }
  }
};

inline vf load_lanes(const float* p) { return load_floats(p); }
inline vf load_lanes(const bf16* p) { return load_floats(p); }
inline vf load_lanes(const f16* p) { return load_floats(p); }
inline vi load_lanes(const int32_t* p) { return load(p); }
typedef int64_t vl_at __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));
typedef uint8_t vbyte __attribute__((vector_size(kLanes)));
typedef uint8_t vbyte_at __attribute__((vector_size(kLanes), aligned(1), may_alias));
inline vl load_lanes(const int64_t* p) { return *reinterpret_cast<const vl_at*>(p); }
inline vi load_lanes(const bool* p) {
  return -__builtin_convertvector(vbyte(*reinterpret_cast<const vbyte_at*>(p)), vi);
}

// Lanes in the opposite order.
template <class Vector>
inline Vector reversed(Vector v) {
#if defined(__clang__)
  Vector other = v;
  for (int lane = 0; lane < kLanes; ++lane) other[lane] = v[kLanes - 1 - lane];
  return other;
#else
  if constexpr (sizeof(v[0]) == 4) {
    return __builtin_shuffle(v, kLanes - 1 - lane_index());
  } else {
    return __builtin_shuffle(v, widen(kLanes - 1 - lane_index()));
  }
#endif
}

typedef double vd_at __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));
inline void add_lanes(float* p, vf g) { store(p, load(p) + g); }
inline void add_lanes(double* p, vf g) { *reinterpret_cast<vd_at*>(p) += __builtin_convertvector(g, vd); }

inline int64_t lane_of(int64_t index, int) { return index; }
inline int64_t lane_of(vi index, int lane) { return index[lane]; }
inline int64_t lane_of(vl index, int lane) { return index[lane]; }

// Those of a warp that run the same statements; see cuda/array.h. Here there is one.
struct Lanes {
  bool here;

  static Lanes all() { return {true}; }
  Lanes where(bool condition) const { return {condition}; }
  explicit operator bool() const { return here; }
};

// What the elements of a part of an array can be: an interval; of truth values, 0 and 1.
constexpr int64_t kHullLimit = 1 << 14;  // larger parts are not looked through
inline Span hull_of(int32_t low, int32_t high, bool) { return {low, high}; }
inline Span hull_of(int64_t low, int64_t high, bool) { return {low, high}; }
inline Span hull_of(bool low, bool high, bool) { return {low, high}; }
inline Reals hull_of(double low, double high, bool nan) { return nan ? unknown_real() : Reals{low, high, false}; }
template <class Scalar>
using Hull = decltype(hull_of(Scalar{}, Scalar{}, false));

inline Span unknown_element(int32_t) { return {INT32_MIN, INT32_MAX}; }
inline Span unknown_element(int64_t) { return {INT64_MIN, INT64_MAX}; }
inline Span unknown_element(bool) { return {0, 1}; }
inline Reals unknown_element(double) { return unknown_real(); }

template <class T>
struct Plain {
  using type = T;
};
template <class T>
struct Plain<const T> {
  using type = T;
};

// One line of an array: the elements along one axis. A line outside the array has no elements.
template <class T>
struct Line {
  using Value = typename Plain<T>::type;
  using Vector = typename ElementOf<Value>::Vector;

  T* data;
  int64_t size, stride;

  // Elements first, first + 1, ... in lanes 0, 1, ...
  Vector run(int64_t first) const {
    if (stride == 1 && first >= 0 && first <= size - kLanes) return load_lanes(data + first);
    Vector value{};
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t index = first + lane;
      if (index >= 0 && index < size) value[lane] = ElementOf<Value>::lane(data[index * stride]);
    }
    return value;
  }

  // Elements first, first - 1, ... in lanes 0, 1, ...
  Vector reversed_run(int64_t first) const {
    if (stride == 1 && first >= kLanes - 1 && first < size) return reversed(load_lanes(data + first - (kLanes - 1)));
    Vector value{};
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t index = first - lane;
      if (index >= 0 && index < size) value[lane] = ElementOf<Value>::lane(data[index * stride]);
    }
    return value;
  }

  // Adds lane 0, 1, ... of g to elements first, first + 1, ...
  void add_run(int64_t first, vf g) const {
    if (stride == 1 && first >= 0 && first <= size - kLanes) return add_lanes(data + first, g);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t index = first + lane;
      if (index >= 0 && index < size) data[index * stride] += g[lane];
    }
  }

  // Adds lane 0, 1, ... of g to elements first, first - 1, ...
  void add_reversed_run(int64_t first, vf g) const {
    if (stride == 1 && first >= kLanes - 1 && first < size) return add_run(first - (kLanes - 1), reversed(g));
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t index = first - lane;
      if (index >= 0 && index < size) data[index * stride] += g[lane];
    }
  }

  // The least and the greatest element, of at least one.
  Hull<typename ElementOf<Value>::Scalar> hull() const {
    using Scalar = typename ElementOf<Value>::Scalar;
    Scalar low = value_of(data[0]), high = low;
    bool nan = low != low;
    const auto include = [&](Scalar x) {
      low = x < low ? x : low;
      high = x > high ? x : high;
      nan |= x != x;
    };
    if (stride == 1) {  // a loop of its own: it becomes vector instructions
      for (int64_t at = 1; at < size; ++at) include(value_of(data[at]));
    } else {
      for (int64_t at = 1; at < size; ++at) include(value_of(data[at * stride]));
    }
    return hull_of(low, high, nan);
  }
};

template <class T, int rank>
struct Array {
  using Value = typename Plain<T>::type;
  using Scalar = typename ElementOf<Value>::Scalar;
  using Vector = typename ElementOf<Value>::Vector;
  static constexpr int kAxes = rank > 0 ? rank : 1;

  T* data;
  int64_t size[kAxes], stride[kAxes];

  explicit Array(const ArrayView& view) : data(static_cast<T*>(view.data)), size{}, stride{} {
    for (int axis = 0; axis < rank; ++axis) {
      size[axis] = view.size[axis];
      stride[axis] = view.stride[axis];
    }
  }

  // Where an element is, or nullptr outside the extents.
  T* find(const int64_t (&index)[kAxes]) const {
    int64_t offset = 0;
    for (int axis = 0; axis < rank; ++axis) {
      if (index[axis] < 0 || index[axis] >= size[axis]) return nullptr;
      offset += index[axis] * stride[axis];
    }
    return data + offset;
  }

  template <class... Index>
  Scalar load(Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    const int64_t where[kAxes] = {static_cast<int64_t>(index)...};
    const T* const found = find(where);
    return found ? value_of(*found) : Scalar{};
  }

  // The line along `axis` through an element, given with 0 as its index along that axis.
  template <int axis, class... Index>
  Line<T> line(Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    const int64_t where[rank] = {static_cast<int64_t>(index)...};
    int64_t offset = 0;
    bool inside = true;
    for (int other = 0; other < rank; ++other) {
      if (other == axis) continue;
      inside = inside && where[other] >= 0 && where[other] < size[other];
      offset += where[other] * stride[other];
    }
    return inside ? Line<T>{data + offset, size[axis], stride[axis]} : Line<T>{nullptr, 0, 1};
  }

  // An element for each lane; an index is a scalar or one number a lane.
  template <class... Index>
  Vector gather(Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    Vector value{};
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t where[rank] = {lane_of(index, lane)...};
      if (const T* const found = find(where)) value[lane] = ElementOf<Value>::lane(*found);
    }
    return value;
  }

  // Gradients: adds g to one element, or its lanes each to their own.
  template <class... Index>
  void add(float g, Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    const int64_t where[kAxes] = {static_cast<int64_t>(index)...};
    if (T* const found = find(where)) *found += g;
  }
  template <class... Index>
  void scatter_add(vf g, Index... index) const {
    static_assert(sizeof...(Index) == rank, "one index for each axis");
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t where[rank] = {lane_of(index, lane)...};
      if (T* const found = find(where)) *found += g[lane];
    }
  }

  // What a box of indexes can read, 0 or false among it where the box reaches outside the extents.
  template <class... Index>
  Hull<Scalar> hull(Lanes, Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    if constexpr (rank == 0) {
      return Line<T>{data, 1, 1}.hull();
    } else {
      const Span box[rank] = {Span(index)...};
      return hull_within(box);
    }
  }

  // The part of a box of indexes that is inside the extents, as lines along its longest axis.
  struct Part {
    const Array& array;
    int64_t first[kAxes], count[kAxes], elements = 1, lines = 0;
    int along = 0;
    bool outside = false;  // the box has indexes outside, which read 0 or false

    Part(const Array& whole, const Span (&box)[kAxes]) : array(whole) {
      for (int axis = 0; axis < rank; ++axis) {
        first[axis] = greatest(box[axis].lo, 0);
        count[axis] = greatest(least(box[axis].hi, array.size[axis] - 1) - first[axis] + 1, 0);
        outside = outside || count[axis] != box[axis].hi - box[axis].lo + 1;
        if (count[axis] > count[along]) along = axis;
      }
      for (int axis = 0; axis < rank; ++axis)
        elements = count[axis] > kHullLimit / greatest(elements, 1) ? kHullLimit + 1 : elements * count[axis];
      for (int axis = 0; axis < rank; ++axis)
        if (count[axis] == 0) elements = 0;
      if (elements > 0) lines = elements / count[along];
    }

    Line<T> line(int64_t n) const {
      int64_t offset = first[along] * array.stride[along];
      for (int axis = 0; axis < rank; ++axis) {
        if (axis == along) continue;
        offset += (first[axis] + n % count[axis]) * array.stride[axis];
        n /= count[axis];
      }
      return {array.data + offset, count[along], array.stride[along]};
    }

    // Of integers: moves x up to the least that is at least x; false if there is none.
    bool next(Lanes, int64_t& x) const {
      const Span any = unknown_element(Scalar{});
      if (elements > kHullLimit) {
        x = greatest(x, any.lo);
        return x <= any.hi;
      }
      bool found = outside && x <= 0;
      int64_t low = found ? 0 : INT64_MAX;
      for (int64_t n = 0; n < lines; ++n) {
        const Line<T> read = line(n);
        for (int64_t at = 0; at < read.size; ++at) {
          const int64_t value = value_of(read.data[at * read.stride]);
          if (value >= x && value <= low) low = value, found = true;
        }
      }
      x = low;
      return found;
    }
  };

  template <class... Index>
  Part part(Index... index) const {
    static_assert(sizeof...(Index) == rank, "a range for each axis");
    const Span box[rank] = {Span(index)...};
    return Part(*this, box);
  }

 private:
  Hull<Scalar> hull_within(const Span (&box)[kAxes]) const {
    const Part part(*this, box);
    const Hull<Scalar> zero = hull_of(Scalar{}, Scalar{}, false);
    if (part.elements > kHullLimit) return unknown_element(Scalar{});
    if (part.elements == 0) return zero;
    Hull<Scalar> found = part.outside ? join(zero, part.line(0).hull()) : part.line(0).hull();
    for (int64_t n = 1; n < part.lines; ++n) found = join(found, part.line(n).hull());
    return found;
  }
};

}  // namespace
}  // namespace fagen
