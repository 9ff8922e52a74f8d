// compute_90a
// The forward pass of attention over tiles of 128 queries by 128 keys of 128 numbers: two products and a softmax a pair.
#include "hopper.cuh"

#define FAGEN_D64                                                                                                      \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "    \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "     \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define FAGEN_ROWS64(d)                                                                                             \
  FAGEN_ROW(d, 0), FAGEN_ROW(d, 8), FAGEN_ROW(d, 16), FAGEN_ROW(d, 24), FAGEN_ROW(d, 32), FAGEN_ROW(d, 40),         \
      FAGEN_ROW(d, 48), FAGEN_ROW(d, 56)

// 64 by 128 by 16 of bf16, both operands along K.
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, int adds) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " FAGEN_D64
               ", %64, %65, p, 1, 1, 0, 0;}"
               : FAGEN_ROWS64(d)
               : "l"(a), "l"(b), "r"(adds));
}
// The same with A in registers and B along N.
__device__ __forceinline__ void multiply(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " FAGEN_D64
               ", {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
               : FAGEN_ROWS64(d)
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

constexpr uint32_t kHalf = 128 * 128;  // bytes of 128 rows of 64 numbers: a tile is two of them

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t two(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Of a row, which four lanes share.
template <typename Op>
__device__ __forceinline__ float of_row(float x, Op op) {
  x = op(x, __shfl_xor_sync(~0u, x, 1));
  return op(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ void load_halves(unsigned char* to, const TensorMap& map, int row, uint64_t* gate) {
  load_tile(to, map, 0, row, gate);
  load_tile(to + kHalf, map, 64, row, gate);
}

// out: (128, 128) of float32. Maps of bf16, 128 columns, boxes of 128 rows by 64. `scale` has the factor log2(e) in it.
__global__ void __launch_bounds__(256) forward(const __grid_constant__ TensorMap q, const __grid_constant__ TensorMap k,
                                               const __grid_constant__ TensorMap v, float* out, int tiles, float scale) {
  extern __shared__ __align__(1024) unsigned char memory[];
  unsigned char *const q_tile = memory, *const k_tile = memory + 2 * kHalf, *const v_tile = memory + 4 * kHalf;
  __shared__ uint64_t full[2];
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
  if (threadIdx.x == 0) {
    init(&full[0], 1);
    init(&full[1], 1);
    fence_init();
    expect(&full[0], 4 * kHalf);
    load_halves(q_tile, q, 0, &full[0]);
    load_halves(k_tile, k, 0, &full[0]);
  }
  __syncthreads();
  float o[64], most[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
  for (int i = 0; i < 64; ++i) o[i] = 0;
  for (int n = 0; n < tiles; ++n) {
    if (threadIdx.x == 0) {
      expect(&full[1], 2 * kHalf);
      load_halves(v_tile, v, 128 * n, &full[1]);
    }
    await(&full[0], n & 1);
    float s[64];
    fence_products();
    for (int step = 0; step < 8; ++step) {
      const uint32_t at = step / 4 * kHalf + step % 4 * 32;
      multiply(s, describe(q_tile + at + group * 64 * 128, 16, 1024, 1), describe(k_tile + at, 16, 1024, 1), step);
    }
    commit_products();
    await_products<0>();
    __syncthreads();
    if (threadIdx.x == 0 && n + 1 < tiles) {
      expect(&full[0], 2 * kHalf);
      load_halves(k_tile, k, 128 * (n + 1), &full[0]);
    }
    uint32_t p[8][4];
    for (int half = 0; half < 2; ++half) {  // rows of a thread: its first, and eight below
      float now = most[half];
      for (int i = 0; i < 32; ++i) now = fmaxf(now, s[i / 2 * 4 + 2 * half + i % 2] * scale);
      now = of_row(now, [](float x, float y) { return fmaxf(x, y); });
      const float keeps = exp2_of(most[half] - now);
      most[half] = now;
      sum[half] *= keeps;
      for (int i = 0; i < 32; ++i) {
        const int at = i / 2 * 4 + 2 * half + i % 2;
        s[at] = exp2_of(s[at] * scale - now);
        sum[half] += s[at];
        o[at] *= keeps;
      }
    }
    for (int step = 0; step < 8; ++step) {
      for (int i = 0; i < 4; ++i) p[step][i] = two(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
    }
    await(&full[1], n & 1);
    fence_products();
    for (int step = 0; step < 8; ++step) {
      multiply(o, p[step], describe(v_tile + step * 16 * 128, kHalf, 1024, 1));
    }
    commit_products();
    await_products<0>();
    __syncthreads();
  }
  for (int half = 0; half < 2; ++half) {
    const float all = of_row(sum[half], [](float x, float y) { return x + y; });
    const int row = 64 * group + thread / 32 * 16 + thread % 32 / 4 + 8 * half;
    for (int i = 0; i < 32; ++i) {
      out[128 * row + i / 2 * 8 + thread % 4 * 2 + i % 2] = o[i / 2 * 4 + 2 * half + i % 2] / all;
    }
  }
}
