// Vectors of the ISA a unit is compiled for, as GCC/Clang vector extensions: operators work lane by lane, a
// comparison gives a vi of 0 and -1, `m ? a : b` selects, and a scalar operand is broadcast.
#pragma once
#include <cstdint>

namespace fagen {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float vf __attribute__((vector_size(4 * kLanes)));
typedef int32_t vi __attribute__((vector_size(4 * kLanes)));

}  // namespace fagen
