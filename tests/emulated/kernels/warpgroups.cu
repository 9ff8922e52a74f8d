// compute_90a
// A product of two matrices by a producer and two consuming warpgroups, and what can go wrong in one.
#include "hopper.cuh"

#include <cuda_bf16.h>

constexpr int kRows = 128, kColumns = 64, kDepth = 64, kStages = 3;

struct Stage {
  __nv_bfloat16 a[kRows][kDepth], b[kColumns][kDepth];
};
struct Shared {
  Stage stages[kStages];
  float out[2][64][32];  // a half of the columns at a time: a warpgroup's own rows
  uint64_t full[kStages], empty[kStages];
};

template <int kMore, int kCount>
__device__ __forceinline__ void set_registers() {
  if (kMore) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

// out = a b^T, of bf16 (rows x depth, columns x depth) and float32. kFault: 1 a consumer does not wait for a stage, 2 it
// gives it back before its products are done, 3 no wgmma.fence, 4 the sums are read in flight, 5 too many registers, 6
// no proxy fence before the store, 7 the parity is not turned, 8 the producer does not wait, 9 a warp is left out.
template <int kFault>
__global__ void __launch_bounds__(384, 1)
    product(const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap b,
            const __grid_constant__ TensorMap out, int depth) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), row = blockIdx.x * kRows, column = blockIdx.y * kColumns;
  if (threadIdx.x == 0) {
    for (int n = 0; n < kStages; ++n) {
      init(&s.full[n], 1);
      init(&s.empty[n], 2);
    }
    fence_init();
  }
  __syncthreads();
  const int steps = depth / kDepth;
  if (group == 0) {
    set_registers<0, 24>();
    if (threadIdx.x == 0) {
      for (int n = 0; n < steps; ++n) {
        const int stage = n % kStages;
        Stage& to = s.stages[stage];
        if (kFault != 8) await(&s.empty[stage], (n / kStages & 1) ^ 1);
        expect(&s.full[stage], sizeof(Stage));
        load_tile(to.a, a, n * kDepth, row, &s.full[stage]);  // load a
        load_tile(to.b, b, n * kDepth, column, &s.full[stage]);  // load b
      }
    }
    return;
  }
  set_registers<1, kFault == 5 ? 256 : 240>();  // registers
  const int own = group - 1, thread = threadIdx.x % 128;
  float sums[32];
  for (int i = 0; i < 32; ++i) sums[i] = 0;
  if (kFault == 9 && thread >= 96) return;
  for (int n = 0; n < steps; ++n) {
    const int stage = n % kStages;
    Stage& from = s.stages[stage];
    if (kFault != 1) await(&s.full[stage], kFault == 7 ? 0 : n / kStages & 1);  // wait for a stage
    if (kFault != 3) fence_products();
    for (int k = 0; k < kDepth; k += 16) {
      multiply64<0>(sums, describe(&from.a[64 * own][k], 16, 1024, 1), describe(&from.b[0][k], 16, 1024, 1), n + k > 0);  // multiply
    }
    commit_products();
    if (kFault == 2 && thread == 0) arrive(&s.empty[stage]);
    if (kFault == 4) asm volatile("add.f32 %0, %0, 0f3F800000;" : "+f"(sums[0]));  // touch
    await_products<0>();
    if (kFault != 2 && thread == 0) arrive(&s.empty[stage]);
  }
  for (int half = 0; half < 2; ++half) {
    float(&to)[64][32] = s.out[own];
    const int line = thread / 32 * 16 + thread % 32 / 4;
    for (int i = 0; i < 16; ++i) {
      to[line + i / 2 % 2 * 8][i / 4 * 8 + thread % 4 * 2 + i % 2] = sums[16 * half + i];  // put
    }
    if (kFault != 6) fence_async();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + own) : "memory");
    if (thread == 0) {
      store_tile(out, column + 32 * half, row + 64 * own, to);  // store
      commit_bulk();
      await_bulk_read<0>();
    }
    asm volatile("bar.sync %0, 128;" ::"r"(1 + own) : "memory");
  }
}
#define FAGEN_PRODUCT(fault)                                                                                     \
  template __global__ void product<fault>(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap, \
                                          const __grid_constant__ TensorMap, int);
FAGEN_PRODUCT(0)
FAGEN_PRODUCT(1)
FAGEN_PRODUCT(2)
FAGEN_PRODUCT(3)
FAGEN_PRODUCT(4)
FAGEN_PRODUCT(5)
FAGEN_PRODUCT(6)
FAGEN_PRODUCT(7)
FAGEN_PRODUCT(8)
FAGEN_PRODUCT(9)

// Blocks that stay, and take tiles of 64 floats from a counter; each is doubled.
template <bool kFaulty>
__global__ void persistent(const float* x, float* out, int* counter, int tiles) {
  __shared__ __align__(128) float tile[64];
  __shared__ uint64_t gate;
  __shared__ int next;
  uint32_t elected;
  asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(elected));
  if (elected) {
    init(&gate, 1);
    fence_init();
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
  __syncthreads();
  for (int phase = 0;; phase ^= 1) {
    if (elected) {
      next = atomicAdd(counter, 1);
      if (next < tiles) {
        expect(&gate, sizeof(tile));
        load_bulk(tile, x + 64 * next, sizeof(tile), &gate);
      }
    }
    __syncthreads();
    const int mine = next;  // take
    if (mine >= tiles) break;
    await(&gate, phase);
    out[64 * mine + threadIdx.x] = 2 * tile[threadIdx.x];
    out[64 * mine + threadIdx.x + 32] = 2 * tile[threadIdx.x + 32];
    if (!kFaulty) __syncthreads();
  }
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
template __global__ void persistent<false>(const float*, float*, int*, int);
template __global__ void persistent<true>(const float*, float*, int*, int);
