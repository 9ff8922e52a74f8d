// Rows of such large scores that rounding counts.
#pragma once
#include "fagen/cuda/math.h"

namespace fagen {
namespace {

// Whether rounding lse to float32 counts, which is in every weight of a row. Below, it moves a weight by 2^-15 of itself at
// most, and so does rounding the score, which is as large; scores of sound models stay far below.
__device__ __forceinline__ bool is_coarse(float lse) { return ::fabsf(lse) >= 0x1p10f && ::fabsf(lse) < kInfinity; }

}  // namespace
}  // namespace fagen
