// Products of two tensors' rows with one another.
#pragma once
#include "fagen/cuda/element.h"
#include "fagen/cuda/rows.h"

namespace fagen {
namespace {

// Lanes that share a row, each with chunks of eight elements: a power of two.
__host__ __device__ constexpr int lanes_of_row(int dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * 8 < dim) lanes *= 2;
  return lanes;
}

// What a lane's chunks of two rows add to `sum`.
template <class Element>
__device__ __forceinline__ float product_of_chunks(const uint4& x, const uint4& y, float sum) {
  const uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int at = 0; at < 4; ++at) {
    sum = fmaf(Element::value(static_cast<uint16_t>(a[at])), Element::value(static_cast<uint16_t>(b[at])), sum);
    sum = fmaf(Element::value(static_cast<uint16_t>(a[at] >> 16)), Element::value(static_cast<uint16_t>(b[at] >> 16)), sum);
  }
  return sum;
}

// Of the lanes that share a row, which all get it.
template <int kLanes>
__device__ __forceinline__ float sum_of_row(float sum) {
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// Row m of a · row n of b, by lanes_of_row(kDim) lanes, which all get it.
template <class Element, int kDim>
__device__ __forceinline__ float product_of_rows(const RowsOf<typename Element::Type>& a,
                                                 int64_t m, const RowsOf<typename Element::Type>& b, int64_t n) {
  constexpr int kLanes = lanes_of_row(kDim);
  const auto* const a_row = reinterpret_cast<const uint16_t*>(a.data + m * a.stride);
  const auto* const b_row = reinterpret_cast<const uint16_t*>(b.data + n * b.stride);
  float sum = 0.0f;
#pragma unroll
  for (int d = lane_id() % kLanes * 8; d < kDim; d += kLanes * 8) {
    if (a.whole && b.whole) {
      sum = product_of_chunks<Element>(*reinterpret_cast<const uint4*>(a_row + d), *reinterpret_cast<const uint4*>(b_row + d), sum);
    } else {
#pragma unroll 1
      for (int at = d; at < d + 8; ++at)
        sum = fmaf(Element::value(a_row[at * a.stride_d]), Element::value(b_row[at * b.stride_d]), sum);
    }
  }
  return sum_of_row<kLanes>(sum);
}

// The same of kCount rows of two tensors that are whole, kStep apart: all are on their way before one is needed.
template <class Element, int kDim, int kCount, int kStep>
class RowPairs {
 public:
  // Rows `first` and on of each, of which there are `rows`, kStep times kCount at most; the others' product is 0.
  __device__ __forceinline__ void load(const RowsOf<typename Element::Type>& a, const RowsOf<typename Element::Type>& b,
                                       int64_t first, int rows) {
    static_assert(kDim <= 8 * kLanes, "a chunk a lane");
    const int chunk = lane_id() % kLanes * 8;
    const auto *a_row = a.data + first * a.stride + chunk, *b_row = b.data + first * b.stride + chunk;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const bool real = n * kStep < rows && chunk < kDim;
      a_[n] = b_[n] = make_uint4(0, 0, 0, 0);
      if (real) a_[n] = *reinterpret_cast<const uint4*>(a_row), b_[n] = *reinterpret_cast<const uint4*>(b_row);
      a_row += kStep * a.stride, b_row += kStep * b.stride;
    }
  }

  // Of row `first` + n · kStep, by the lanes that share it.
  __device__ __forceinline__ float product(int n) const {
    return sum_of_row<kLanes>(product_of_chunks<Element>(a_[n], b_[n], 0.0f));
  }

 private:
  static constexpr int kLanes = lanes_of_row(kDim);

  uint4 a_[kCount], b_[kCount];
};

}  // namespace
}  // namespace fagen
