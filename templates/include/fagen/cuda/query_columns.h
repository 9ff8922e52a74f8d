// Scores that are transposed, in registers: rows are a warp's 16 keys, of which a lane holds lane / 4 and lane / 4 + 8, and
// columns a tile's queries, of each eight of which it holds two.
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/ptx/memory.h"
#include "fagen/ptx/warpgroup.h"

namespace fagen {
namespace {

// Numbers of query rows lie in memory by sixteens, in each of which a lane's four are together: where row `i` has its own.
__device__ __forceinline__ int64_t place_of_row(int64_t i) {
  return (i & ~int64_t{15}) | (i >> 1 & 3) << 2 | (i >> 3 & 1) << 1 | (i & 1);
}

// A lane's four of the sixteen columns from 16 · n on: of the first eight, then of the others.
__device__ __forceinline__ float4 numbers_of_columns(uint32_t numbers, int n) {
  const uint4 x = ptx::ld_shared_16(numbers + 64 * n + 16 * (lane_id() % 4));
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
}

// Each column's number in both rows. Read once for each: moved from one to the other, sums would be written between products.
template <int kQueryTiles>
__device__ __forceinline__ void start_columns(float (&x)[kQueryTiles][4], uint32_t numbers) {
#pragma unroll
  for (int n = 0; n < kQueryTiles; n += 2)
#pragma unroll
    for (int e = 0; e < 4; e += 2) {
      const float4 of = numbers_of_columns(numbers, n / 2);
      x[n][e] = of.x, x[n][e + 1] = of.y, x[n + 1][e] = of.z, x[n + 1][e + 1] = of.w;
    }
  ptx::settle(x);
}
template <int kTiles>
__device__ __forceinline__ void start_at_nothing(float (&x)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) x[n][0] = x[n][1] = x[n][2] = x[n][3] = 0.0f;
}
template <int kTiles>
__device__ __forceinline__ void multiply_all(float (&x)[kTiles][4], float factor) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) x[n][e] *= factor;
}

// Where a lane's part of transposed pairs goes in rows of queries: slabs of 64 keys, 128 bytes a row, swizzled. Sixteen
// queries on, it is 16 rows on.
__device__ __forceinline__ uint32_t place_of_columns(uint32_t slab) {
  const int lane = lane_id(), row = lane / 16 * 8 + lane % 8, chunk = warp_id() % 4 * 2 + lane / 8 % 2;
  return slab + static_cast<uint32_t>(row * 128 + (chunk ^ lane % 8) * 16);
}

// Sums as a warpgroup's threads hold them, each warp's and of those each eight columns' together.
template <int kTiles>
__device__ __forceinline__ void store_sums(uint32_t shared, const float (&x)[kTiles][4]) {
  const uint32_t place = shared + static_cast<uint32_t>(warp_id() % 4 * kTiles * 512 + lane_id() * 16);
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
    ptx::st_shared_16(place + n * 512, make_uint4(__float_as_uint(x[n][0]), __float_as_uint(x[n][1]), __float_as_uint(x[n][2]),
                                                  __float_as_uint(x[n][3])));
}

// Back into the registers of such threads: of eight columns of kTiles times as many,
template <int kTiles>
__device__ __forceinline__ float4 sums_of_columns(uint32_t shared, int n) {
  const uint4 x = ptx::ld_shared_16(shared + static_cast<uint32_t>((warp_id() % 4 * kTiles + n) * 512 + lane_id() * 16));
  return make_float4(__uint_as_float(x.x), __uint_as_float(x.y), __uint_as_float(x.z), __uint_as_float(x.w));
}
// or all.
template <int kTiles>
__device__ __forceinline__ void load_sums(float (&x)[kTiles][4], uint32_t shared) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float4 of = sums_of_columns<kTiles>(shared, n);
    x[n][0] = of.x, x[n][1] = of.y, x[n][2] = of.z, x[n][3] = of.w;
  }
}

}  // namespace
}  // namespace fagen
