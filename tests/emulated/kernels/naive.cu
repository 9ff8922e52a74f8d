// compute_80
#include <cstdint>
#include <cuda_bf16.h>
struct P { const float* x; float* o; int64_t n; int k[4]; };
__device__ __noinline__ float slow(float a, int n) { float s = 0; for (int i = 0; i < n; ++i) s += a * i; return s; }
__global__ void __launch_bounds__(128) kern(const __grid_constant__ P p) {
  __shared__ float s[128];
  float loc[16];
  int t = blockIdx.x * 128 + threadIdx.x;
  for (int i = 0; i < 16; ++i) loc[i] = sinf(p.x[t] * i);
  s[threadIdx.x] = t < p.n ? p.x[t] : 0.f;
  __syncthreads();
  float v = s[127 - threadIdx.x] + loc[p.k[t & 3] & 15];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
  if (v > 3.f) v = slow(v, p.k[0]); else v = expf(v);
  if (t < p.n) p.o[t] = v / __bfloat162float(__float2bfloat16(v + 1.f));
}
