// Rows of a tensor in shared memory, and how they get there.
#pragma once
#include "fagen/cuda/threads.h"
#include "fagen/params.h"
#include "fagen/ptx/barrier.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// kDim elements a row, in chunks of 16 bytes, padded with zeros to whole steps of a product. Eight rows at the same
// chunk lie in different banks: by a swizzle where a row is a multiple of 128 bytes, else by an odd pitch.
template <int kDim>
struct Rows {
  static constexpr int kChunks = (kDim + 15) / 16 * 2;
  static constexpr bool kSwizzled = kChunks % 8 == 0;
  static constexpr int kPitch = kSwizzled ? kChunks : kChunks | 1;  // in chunks
  static constexpr int kBytes = kPitch * 16;

  // Of a chunk, in bytes.
  static __device__ __forceinline__ uint32_t at(int row, int chunk) {
    return static_cast<uint32_t>(row * kPitch + (kSwizzled ? chunk ^ (row & 7) : chunk)) * 16;
  }

  // The place `rows` (a multiple of 8) and `chunks` on from a place in chunk 0, or from one in chunk 1 by an even number
  // of chunks, in memory that begins at a multiple of 128 bytes.
  static __device__ __forceinline__ uint32_t moved(uint32_t place, int rows, int chunks) {
    if (kSwizzled) return (place ^ static_cast<uint32_t>(chunks % 8 * 16)) + rows * kBytes + chunks / 8 * 128;
    return place + rows * kBytes + chunks * 16;
  }
};

// A tensor's rows of one batch entry and head.
template <class Element>
struct RowsOf {
  Element* data;
  int64_t stride, stride_d;
  bool whole;  // chunks can be copied as they are: adjacent elements, everything a multiple of 16 bytes

  static __device__ __forceinline__ RowsOf of(const TensorView& view, int64_t b, int64_t h) {
    return at(view, reinterpret_cast<uint64_t>(static_cast<Element*>(view.data) + b * view.stride_b + h * view.stride_h));
  }
  // From the address of the first.
  static __device__ __forceinline__ RowsOf at(const TensorView& view, uint64_t data) {
    const int64_t strides = view.stride_b | view.stride_s | view.stride_h;
    const bool whole = view.stride_d == 1 && strides % 8 == 0 && reinterpret_cast<uint64_t>(view.data) % 16 == 0;
    return {reinterpret_cast<Element*>(data), view.stride_s, view.stride_d, whole};
  }
};

// Copies rows first to first + kRows - 1 to `to`, by kThreads threads; rows from `end` on are zeros, and so is what
// lies beyond kDim. The copies belong to the thread's current group of asynchronous ones.
template <class R, int kRows, int kDim, int kThreads, class Element>
__device__ __forceinline__ void load_rows(uint32_t to, const RowsOf<Element>& from, int first, int end) {
  constexpr int kChunks = R::kChunks, kTotal = kRows * kChunks;
  if (from.whole) {
    if constexpr (kThreads % kChunks == 0 && kDim % 8 == 0 && kDim == kChunks * 8 && kTotal % kThreads == 0) {
      // Each thread stays at its chunk; the swizzle comes back after kTurns steps.
      constexpr int kStep = kThreads / kChunks, kTurns = R::kSwizzled && kStep < 8 ? 8 / kStep : 1;
      const int row = static_cast<int>(threadIdx.x / kChunks), chunk = static_cast<int>(threadIdx.x % kChunks);
      const int left = end - first - row;
      const char* source = reinterpret_cast<const char*>(from.data + (first + row) * from.stride + chunk * 8);
      const int64_t step = kStep * from.stride * 2;
      uint32_t targets[kTurns];
#pragma unroll
      for (int n = 0; n < kTurns; ++n) targets[n] = to + R::at(row + n * kStep, chunk);
#pragma unroll
      for (int n = 0; n < kRows / kStep; ++n) {
        ptx::copy_16(targets[n % kTurns] + n / kTurns * kTurns * kStep * R::kBytes, source, n * kStep < left);
        source += step;
      }
    } else {
      for (int at = static_cast<int>(threadIdx.x); at < kTotal; at += kThreads) {
        const int row = at / kChunks, chunk = at % kChunks;
        const bool real = first + row < end && chunk * 8 < kDim;
        ptx::copy_16(to + R::at(row, chunk), from.data + (real ? (first + row) * from.stride + chunk * 8 : 0), real);
      }
    }
    return;
  }
  // Pair by pair of elements, in short code: what is seldom run takes room in the instruction cache too. A thread has the
  // same chunks as above: it looks at what it has copied before others may (remove_nonfinite).
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < kTotal; at += kThreads)
    for (int n = 0; n < 8; n += 2) {
      const int row = at / kChunks, chunk = at % kChunks, column = chunk * 8 + n;
      uint32_t pair = 0;
      if (first + row < end && column < kDim) {
        const auto* const source =
            reinterpret_cast<const uint16_t*>(from.data + (first + row) * from.stride + column * from.stride_d);
        pair = source[0] | static_cast<uint32_t>(source[from.stride_d]) << 16;
      }
      ptx::st_shared_4(to + R::at(row, chunk) + n * 2, pair);
    }
}

// Copies `count` of kRows rows, kDim elements each, from shared memory to rows `first` and on, by a warp.
template <class R, int kRows, int kDim, class Element>
__device__ __forceinline__ void store_rows(const RowsOf<Element>& to, int first, int count, uint32_t from) {
  constexpr int kChunks = kDim / 8;
  const int lane = lane_id();
  Element* const rows = to.data + first * to.stride;
  if (to.whole) {
    if constexpr (32 % kChunks == 0 && kRows % (32 / kChunks) == 0) {
      // Each lane stays at its chunk; the swizzle comes back after kTurns steps.
      constexpr int kStep = 32 / kChunks, kTurns = R::kSwizzled && kStep < 8 ? 8 / kStep : 1;
      const int row = lane / kChunks, chunk = lane % kChunks;
      char* target = reinterpret_cast<char*>(rows + row * to.stride + chunk * 8);
      const int64_t step = kStep * to.stride * 2;
      uint32_t places[kTurns];
#pragma unroll
      for (int n = 0; n < kTurns; ++n) places[n] = from + R::at(row + n * kStep, chunk);
#pragma unroll
      for (int n = 0; n < kRows / kStep; ++n) {
        if (row + n * kStep < count)
          ptx::st_global_16(target, ptx::ld_shared_16(places[n % kTurns] + n / kTurns * kTurns * kStep * R::kBytes));
        target += step;
      }
    } else {
      for (int at = lane; at < count * kChunks; at += 32) {
        const int row = at / kChunks, chunk = at % kChunks;
        ptx::st_global_16(rows + row * to.stride + chunk * 8, ptx::ld_shared_16(from + R::at(row, chunk)));
      }
    }
    return;
  }
#pragma unroll 1
  for (int at = lane; at < count * kDim; at += 32) {
    const int row = at / kDim, column = at % kDim;
    *reinterpret_cast<uint16_t*>(rows + row * to.stride + column * to.stride_d) =
        ptx::ld_shared_2(from + R::at(row, column / 8) + column % 8 * 2);
  }
}

}  // namespace
}  // namespace fagen
