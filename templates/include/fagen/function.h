// How functions are declared that kernels of every target call: on the device too, where the compiler is for one.
#pragma once

#if defined(__CUDACC__)
#define FAGEN_FUNCTION __host__ __device__ __forceinline__
#define FAGEN_CONSTEXPR __host__ __device__ constexpr
#else
#define FAGEN_FUNCTION inline
#define FAGEN_CONSTEXPR constexpr
#endif
