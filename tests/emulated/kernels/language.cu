// compute_80
// What C++ becomes in PTX besides arithmetic: places in the grid, calls, structs, switches, vectors, barriers that reduce.
#include <cstdint>

__global__ void places(int* out) {
  const int threads = blockDim.x * blockDim.y * blockDim.z;
  const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  unsigned lane, warp, warps, below, above;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  asm("mov.u32 %0, %%warpid;" : "=r"(warp));
  asm("mov.u32 %0, %%nwarpid;" : "=r"(warps));
  asm("mov.u32 %0, %%lanemask_lt;" : "=r"(below));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(above));
  const int all[] = {static_cast<int>(threadIdx.x), static_cast<int>(threadIdx.y), static_cast<int>(threadIdx.z),
                     static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), static_cast<int>(blockIdx.z),
                     static_cast<int>(lane), static_cast<int>(warp), static_cast<int>(warps), static_cast<int>(below),
                     static_cast<int>(above), static_cast<int>(gridDim.x), static_cast<int>(gridDim.y),
                     static_cast<int>(gridDim.z)};
  for (int i = 0; i < 14; ++i) out[14 * (block * threads + thread) + i] = all[i];
}

struct Pair {
  long long sum;
  int8_t parts[5];
};

__device__ __noinline__ Pair paired(Pair p, int by) {
  for (int i = 0; i < 5; ++i) p.parts[i] = static_cast<int8_t>(p.parts[i] + by);
  p.sum += by;
  return p;
}
__device__ __noinline__ int collatz(unsigned n) {
  int steps = 0;
  while (n != 1) {
    if (steps > 200) return -1;
    n = n % 2 ? 3 * n + 1 : n / 2;
    ++steps;
  }
  return steps;
}
__device__ __noinline__ int both(int n) { return n % 3 ? collatz(n + 1) : -collatz(n + 2); }

__global__ void calls(long long* out) {
  const int t = threadIdx.x;
  Pair p{t, {1, 2, 3, 4, static_cast<int8_t>(t)}};
  if (t % 2) p = paired(paired(p, t), 100);
  long long total = p.sum;
  for (int i = 0; i < 5; ++i) total = total * 7 + p.parts[i];
  out[t] = total * 1000 + both(t);
}

__global__ void switches(const int* x, int* out) {
  const int t = threadIdx.x;
  int y = 0;
  switch (x[t]) {
    case 0: y = t; break;
    case 1: y = 3 * t; break;
    case 2: y = t * t;
    case 3: y += 5; break;
    case 4: y = -t; break;
    case 5: y = t << 3; break;
    case 6: y = ~t; break;
    case 7: return;
    default: y = 1000;
  }
  out[t] = y;
}

__global__ void vectors(const uchar4* bytes, const short2* shorts, const double2* doubles, uint4* out) {
  const int t = threadIdx.x;
  const uchar4 b = bytes[t];
  const short2 s = shorts[t];
  const double2 d = doubles[t];
  out[t] = make_uint4(b.x + (b.y << 8), static_cast<unsigned>(s.x * s.y), static_cast<unsigned>(d.x + d.y), b.w * b.z);
}

// Votes of a block, and barriers that two halves of a block have for themselves.
__global__ void votes(const int* x, int* out) {
  const int t = threadIdx.x;
  out[t] = __syncthreads_count(x[t] > 0);
  out[t] += 1000 * __syncthreads_and(x[t] > -5);
  out[t] += 2000 * __syncthreads_or(x[t] > 4);
}
__global__ void halves(int* out) {
  __shared__ int slot[128];
  const int t = threadIdx.x, half = t / 64;
  for (int n = 0; n < 3 + half; ++n) {
    slot[t] = t + n;
    asm volatile("bar.sync %0, 64;" ::"r"(1 + half) : "memory");
    out[t] = slot[t ^ 63];
    asm volatile("bar.sync %0, 64;" ::"r"(1 + half) : "memory");
  }
}

// Warp 0 produces, warps 1 and 2 consume; those who arrive do not wait.
__global__ void producer(int* out, int rounds) {
  __shared__ int slot[32];
  const int lane = threadIdx.x % 32;
  int sum = 0;
  for (int n = 0; n < rounds; ++n) {
    if (threadIdx.x < 32) {
      if (n > 0) asm volatile("bar.sync 2, 96;" ::: "memory");
      slot[lane] = n * lane;
      asm volatile("bar.arrive 1, 96;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 96;" ::: "memory");
      sum += slot[31 - lane];
      if (n + 1 < rounds) asm volatile("bar.arrive 2, 96;" ::: "memory");
    }
  }
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = sum;
}

// Bytes that an mbarrier expects, and one participant less after the first phase.
__global__ void transactions(int* out) {
  __shared__ unsigned long long gate;
  const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&gate));
  const auto test = [&](unsigned parity) {
    unsigned done;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(done) : "r"(at), "r"(parity) : "memory");
    return done;
  };
  if (threadIdx.x != 0) return;
  asm volatile("mbarrier.init.shared.b64 [%0], 2;" ::"r"(at) : "memory");
  int seen = test(0);
  asm volatile("{.reg .b64 s; mbarrier.arrive_drop.shared.b64 s, [%0];}" ::"r"(at) : "memory");
  seen |= test(0) << 1;
  asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%0];}" ::"r"(at) : "memory");
  seen |= test(0) << 2 | test(1) << 3;
  asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%0];}" ::"r"(at) : "memory");
  seen |= test(1) << 4 | test(0) << 5;
  *out = seen;
}
