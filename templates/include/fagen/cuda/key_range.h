// Ranges of keys as a kernel that goes from the last to the first has them, and of positions.
#pragma once
#include "fagen/bounds.h"

namespace fagen {
namespace {

// Keys first to last - 1, below a limit: of several ranges, what holds them all.
struct KeyRange {
  int first, last;

  static __device__ __forceinline__ KeyRange nothing() { return {kNever, 0}; }
  template <class Int>
  static __device__ __forceinline__ KeyRange between(Int first, Int last, int limit) {
    first = greatest(first, 0), last = least(last, limit);
    return first < last ? KeyRange{static_cast<int>(first), static_cast<int>(last)} : nothing();
  }

  static constexpr int kNever = 0x7fffffff;
};
__device__ __forceinline__ KeyRange unite(KeyRange a, KeyRange b) {
  return {a.first < b.first ? a.first : b.first, a.last > b.last ? a.last : b.last};
}
__device__ __forceinline__ KeyRange intersect(KeyRange a, KeyRange b) {
  const int first = a.first > b.first ? a.first : b.first, last = a.last < b.last ? a.last : b.last;
  return first < last ? KeyRange{first, last} : KeyRange::nothing();
}

// Positions first to last - 1, of any sign: of several ranges, what holds them all.
struct PositionRange {
  int64_t first, last;

  static __device__ __forceinline__ PositionRange between(int64_t first, int64_t last) {
    return first < last ? PositionRange{first, last} : PositionRange{INT64_MAX, INT64_MIN};
  }
  __device__ __forceinline__ KeyRange below(int limit) const { return KeyRange::between(first, last, limit); }
};
__device__ __forceinline__ PositionRange unite(PositionRange a, PositionRange b) {
  return {least(a.first, b.first), greatest(a.last, b.last)};
}
__device__ __forceinline__ PositionRange intersect(PositionRange a, PositionRange b) {
  return PositionRange::between(greatest(a.first, b.first), least(a.last, b.last));
}
__device__ __forceinline__ PositionRange shifted(PositionRange a, int64_t by) {
  return a.first < a.last ? PositionRange{a.first + by, a.last + by} : a;
}

}  // namespace
}  // namespace fagen
