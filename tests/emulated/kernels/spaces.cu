// compute_80
// Memory that must not be touched, or not so.
#include <cuda_pipeline_primitives.h>

template <bool kFaulty>
__global__ void uninitialised(int* out) {
  __shared__ int slot[64];
  if (threadIdx.x != 21 || !kFaulty) slot[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = slot[threadIdx.x ^ 32];  // never written
}
template __global__ void uninitialised<true>(int*);
template __global__ void uninitialised<false>(int*);

// `beyond` is where the first fault lies.
template <bool kFaulty>
__global__ void beyond_shared(int* out, int beyond) {
  extern __shared__ int slots[];
  if (threadIdx.x == 11) slots[kFaulty ? beyond : 0] = 3;  // beyond shared memory
  out[threadIdx.x] = 0;
}
template __global__ void beyond_shared<true>(int*, int);
template __global__ void beyond_shared<false>(int*, int);

template <bool kFaulty>
__global__ void beyond_global(const int* x, int* out, int distance) {
  out[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x == 7) out[7] = x[kFaulty ? distance : 3];  // beyond global memory
}
template __global__ void beyond_global<true>(const int*, int*, int);
template __global__ void beyond_global<false>(const int*, int*, int);

// A vector whose second half is no longer there.
template <bool kFaulty>
__global__ void across_the_end(const float2* x, float2* out) {
  const int last = kFaulty ? 3 : 2;
  if (threadIdx.x == 4) out[0] = x[last];  // across the end
}
template __global__ void across_the_end<true>(const float2*, float2*);
template __global__ void across_the_end<false>(const float2*, float2*);

template <bool kFaulty>
__global__ void beyond_local(int* out, int index) {
  volatile int own[8];
  for (int i = 0; i < 8; ++i) own[i] = i;
  if (threadIdx.x == 13) out[0] = own[kFaulty ? index : index % 8];  // beyond local memory
}
template __global__ void beyond_local<true>(int*, int);
template __global__ void beyond_local<false>(int*, int);

template <bool kFaulty>
__global__ void beyond_copy(const float* x, float* out, int index) {
  __shared__ __align__(16) float tile[32 * 4];
  const int at = kFaulty && threadIdx.x == 31 ? index : 4 * threadIdx.x;
  __pipeline_memcpy_async(tile + 4 * threadIdx.x, x + at, 16);  // copy from beyond
  __pipeline_commit();
  __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[4 * threadIdx.x];
}
template __global__ void beyond_copy<true>(const float*, float*, int);
template __global__ void beyond_copy<false>(const float*, float*, int);

template <bool kFaulty>
__global__ void misaligned(const int* x, int4* out) {
  if (threadIdx.x == 30) out[0] = *reinterpret_cast<const int4*>(x + (kFaulty ? 2 : 4));  // misaligned load
}
template __global__ void misaligned<true>(const int*, int4*);
template __global__ void misaligned<false>(const int*, int4*);

template <bool kFaulty>
__global__ void misaligned_shared(int* out) {
  __shared__ __align__(16) char bytes[64];
  if (threadIdx.x == 2) *reinterpret_cast<volatile int*>(bytes + (kFaulty ? 6 : 8)) = 1;  // misaligned store
  out[threadIdx.x] = 0;
}
template __global__ void misaligned_shared<true>(int*);
template __global__ void misaligned_shared<false>(int*);

template <bool kFaulty>
__global__ void read_only(int* x, int* out) {
  if (threadIdx.x == 5) (kFaulty ? x : out)[1] = 2;  // store into what is read only
}
template __global__ void read_only<true>(int*, int*);
template __global__ void read_only<false>(int*, int*);
