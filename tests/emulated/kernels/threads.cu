// compute_80
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
extern "C" __global__ void with_barrier(const float* x, float* o, int rounds) {
  __shared__ cuda::barrier<cuda::thread_scope_block> b;
  __shared__ float s[64];
  if (threadIdx.x == 0) init(&b, blockDim.x);
  __syncthreads();
  float v = x[threadIdx.x];
  for (int i = 0; i < rounds; ++i) {
    s[threadIdx.x] = v;
    b.arrive_and_wait();
    v += s[(threadIdx.x + 1) % 64];
    b.arrive_and_wait();
  }
  o[threadIdx.x] = v;
}
extern "C" __global__ void with_pipeline(const float* x, float* o, int n) {
  __shared__ float s[2][128];
  auto pipe = cuda::make_pipeline();
  float total = 0;
  pipe.producer_acquire();
  cuda::memcpy_async(&s[0][threadIdx.x], x + threadIdx.x, sizeof(float), pipe);
  pipe.producer_commit();
  for (int i = 0; i < n; ++i) {
    if (i + 1 < n) {
      pipe.producer_acquire();
      cuda::memcpy_async(&s[(i + 1) & 1][threadIdx.x], x + (i + 1) * 128 + threadIdx.x, sizeof(float), pipe);
      pipe.producer_commit();
      cuda::pipeline_consumer_wait_prior<1>(pipe);
    } else {
      cuda::pipeline_consumer_wait_prior<0>(pipe);
    }
    __syncthreads();
    total += s[i & 1][127 - threadIdx.x];
    __syncthreads();
    pipe.consumer_release();
  }
  o[threadIdx.x] = total;
}
extern "C" __global__ void tiles(const int* x, int* o) {
  auto block = cg::this_thread_block();
  auto tile = cg::tiled_partition<8>(block);
  int v = cg::reduce(tile, x[threadIdx.x], cg::plus<int>());
  if (tile.thread_rank() == 0) o[threadIdx.x / 8] = v;
}
