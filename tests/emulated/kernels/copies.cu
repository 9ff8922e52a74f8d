// compute_80
// cp.async: what lands too early shows a missing barrier, what lands late a missing wait.
#include <cuda_pipeline_primitives.h>

// A ring of two stages, of 128 floats each. The second barrier keeps a stage from being filled while it is still read.
template <bool kFaulty>
__global__ void refill(const float* x, float* out, int tiles) {
  __shared__ float ring[2][128];
  const int t = threadIdx.x;
  float sum = 0.0f;
  __pipeline_memcpy_async(&ring[0][t], x + t, 4);
  __pipeline_commit();
  for (int n = 0; n < tiles; ++n) {
    if (n + 1 < tiles) __pipeline_memcpy_async(&ring[(n + 1) % 2][t], x + 128 * (n + 1) + t, 4);  // refill
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    sum += ring[n % 2][127 - t];  // read of a stage
    if (!kFaulty) __syncthreads();
  }
  out[t] = sum;
}
template __global__ void refill<true>(const float*, float*, int);
template __global__ void refill<false>(const float*, float*, int);

template <bool kFaulty>
__global__ void unwaited(const float* x, float* out) {
  __shared__ float tile[32];
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // unwaited copy
  __pipeline_commit();
  if (!kFaulty) __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[threadIdx.x];  // unwaited read
}
template __global__ void unwaited<true>(const float*, float*);
template __global__ void unwaited<false>(const float*, float*);

// One group too many is left in flight.
template <bool kFaulty>
__global__ void one_too_many(const float* x, float* out) {
  __shared__ float tile[2][32];
  __pipeline_memcpy_async(tile[0] + threadIdx.x, x + threadIdx.x, 4);
  __pipeline_commit();
  __pipeline_memcpy_async(tile[1] + threadIdx.x, x + 32 + threadIdx.x, 4);  // copy of group 1
  __pipeline_commit();
  if (kFaulty) {
    __pipeline_wait_prior(1);
  } else {
    __pipeline_wait_prior(0);
  }
  out[threadIdx.x] = tile[0][threadIdx.x] + tile[1][threadIdx.x];  // read of group 1
}
template __global__ void one_too_many<true>(const float*, float*);
template __global__ void one_too_many<false>(const float*, float*);

// Each thread has waited for its own copies, which tells the others nothing.
template <bool kFaulty>
__global__ void others_copies(const float* x, float* out) {
  __shared__ float tile[64];
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // other's copy
  __pipeline_commit();
  if (kFaulty) __syncthreads();
  __pipeline_wait_prior(0);
  if (!kFaulty) __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];  // read of other's copy
}
template __global__ void others_copies<true>(const float*, float*);
template __global__ void others_copies<false>(const float*, float*);

// What was never committed belongs to no group that could be waited for.
template <bool kFaulty>
__global__ void uncommitted(const float* x, float* out) {
  __shared__ float tile[32];
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // uncommitted copy
  if (!kFaulty) __pipeline_commit();
  __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[threadIdx.x];  // read of the uncommitted
}
template __global__ void uncommitted<true>(const float*, float*);
template __global__ void uncommitted<false>(const float*, float*);

// The source is changed while it may still be read.
template <bool kFaulty>
__global__ void changed_source(float* x, float* out) {
  __shared__ float tile[32];
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // copy of a source
  __pipeline_commit();
  if (!kFaulty) __pipeline_wait_prior(0);
  x[threadIdx.x] = 0.0f;  // change of a source
  __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[threadIdx.x];
}
template __global__ void changed_source<true>(float*, float*);
template __global__ void changed_source<false>(float*, float*);

// Written by hand before the copy has landed there.
template <bool kFaulty>
__global__ void overwritten(const float* x, float* out) {
  __shared__ float tile[32];
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // copy beneath
  __pipeline_commit();
  if (!kFaulty) __pipeline_wait_prior(0);
  tile[threadIdx.x] = 1.0f;  // store above
  __pipeline_wait_prior(0);
  out[threadIdx.x] = tile[threadIdx.x];
}
template __global__ void overwritten<true>(const float*, float*);
template __global__ void overwritten<false>(const float*, float*);

// An mbarrier that copies arrive at.
template <bool kFaulty>
__global__ void copies_arrive(const float* x, float* out) {
  __shared__ float tile[32];
  __shared__ unsigned long long gate;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&gate));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 32;" ::"r"(at) : "memory");
  __syncthreads();
  if (kFaulty) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
  __pipeline_memcpy_async(tile + threadIdx.x, x + threadIdx.x, 4);  // copy at a gate
  if (!kFaulty) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(at) : "memory");
  unsigned done = 0;
  while (!done) {
    asm volatile(
        "{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(at)
        : "memory");
  }
  out[threadIdx.x] = tile[31 - threadIdx.x];  // read behind a gate
}
template __global__ void copies_arrive<true>(const float*, float*);
template __global__ void copies_arrive<false>(const float*, float*);
