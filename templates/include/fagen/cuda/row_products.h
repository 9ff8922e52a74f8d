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
      const uint4 x = *reinterpret_cast<const uint4*>(a_row + d), y = *reinterpret_cast<const uint4*>(b_row + d);
      const uint32_t of_a[4] = {x.x, x.y, x.z, x.w}, of_b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int at = 0; at < 4; ++at) {
        sum = fmaf(Element::value(static_cast<uint16_t>(of_a[at])), Element::value(static_cast<uint16_t>(of_b[at])), sum);
        sum = fmaf(Element::value(static_cast<uint16_t>(of_a[at] >> 16)), Element::value(static_cast<uint16_t>(of_b[at] >> 16)), sum);
      }
    } else {
#pragma unroll 1
      for (int at = d; at < d + 8; ++at)
        sum = fmaf(Element::value(a_row[at * a.stride_d]), Element::value(b_row[at * b.stride_d]), sum);
    }
  }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

}  // namespace
}  // namespace fagen
