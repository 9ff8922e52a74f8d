// What the backward kernels need of each query row, beside its elements: made once, by the first of them.
#pragma once
#include "fagen/cuda/coarse.h"
#include "fagen/cuda/threads.h"
#include "fagen/ptx/memory.h"

namespace fagen {
namespace {

// 16 bytes, as one copy moves.
struct Note {
  float lse;    // in the units of exponents
  float norm;   // what weights exp(x - lse) are multiplied by, to add up to 1; 0: the row sees no key, or there is none
  float delta;  // dO · o - dlse
  float gaps;   // not 0: a row of its tile has norm 0
};
constexpr int kNoteBytes = 16;

__device__ __forceinline__ Note note_at(uint32_t shared) {
  const float4 x = ptx::ld_shared_4x4(shared);
  return {x.x, x.y, x.z, x.w};
}
__device__ __forceinline__ void store_note(void* global, const Note& note) {
  ptx::st_global_16(global, make_uint4(__float_as_uint(note.lse), __float_as_uint(note.norm), __float_as_uint(note.delta),
                                       __float_as_uint(note.gaps)));
}

// Those of kRows rows, by as many threads; the copies belong to the thread's current group of asynchronous ones.
template <int kRows>
__device__ __forceinline__ void load_notes(uint32_t to, const void* global) {
  if (threadIdx.x < kRows)
    ptx::copy_16(to + threadIdx.x * kNoteBytes, static_cast<const char*>(global) + threadIdx.x * kNoteBytes, true);
}

// What makes a row's weights, whose sum is `sum`, add up to 1: by no more than rounding can have moved their exponents, as
// an lse that other keys have a part in is not of these alone. Where exponents are powers of two, lse, its units, and those
// of the scores are rounded, here and in the forward kernel: seven times in all, by 2^-24 each.
__device__ __forceinline__ float norm_of(float lse, float sum) {
  return is_coarse(lse) && ::fabsf(::logf(sum)) <= 0x1p-21f * ::fabsf(lse) ? 1.0f / sum : 1.0f;
}

}  // namespace
}  // namespace fagen
