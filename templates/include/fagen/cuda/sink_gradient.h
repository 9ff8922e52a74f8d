// The gradient of a head's sink, from the notes on its query rows.
#pragma once
#include "fagen/cuda/query_notes.h"
#include "fagen/params.h"

namespace fagen {
namespace {

// This thread's part of -Σ exp(sink - lse) delta, over the rows of head h in all batch entries, of which each has `rows`
// notes.
template <int kThreads>
__device__ __forceinline__ float sink_slope(const BackwardParams& p, int32_t h, int64_t rows) {
  float sum = 0.0f;
  const float sink = p.sink[h];
  for (int64_t b = 0; b < p.shape.batch; ++b) {
    const auto* const notes = static_cast<const float4*>(p.notes) + (b * p.shape.heads + h) * rows;
    for (int64_t n = threadIdx.x; n < rows; n += kThreads) {
      const float4 note = notes[n];  // lse, norm, delta, gaps
      const float weight = sink == note.x ? 1.0f : ::expf(sink - note.x);  // one of inf has all of it
      if (note.y != 0.0f) sum -= weight * note.y * note.z;
    }
  }
  return sum;
}

}  // namespace
}  // namespace fagen
