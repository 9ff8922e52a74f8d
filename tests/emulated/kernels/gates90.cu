// compute_90a
// Small mistakes with what sm_90a has; kFaulty and its twin.
#include "hopper.cuh"

// A product that reads what ordinary stores wrote.
template <bool kFaulty>
__global__ void unfenced_product(float* out) {
  __shared__ __align__(1024) uint16_t a[64 * 16], b[64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) a[i] = b[i] = 0x3f80;  // put
  if (!kFaulty) fence_async();
  __syncthreads();
  float sums[32];
  fence_products();
  multiply64<0>(sums, describe(a, 128, 256, 0), describe(b, 128, 256, 0), 0);  // product
  commit_products();
  await_products<0>();
  out[threadIdx.x] = sums[0];
}
template __global__ void unfenced_product<true>(float*);
template __global__ void unfenced_product<false>(float*);

// A product's matrix is stored into before it is done.
template <bool kFaulty>
__global__ void rewritten_product(float* out) {
  __shared__ __align__(1024) uint16_t a[64 * 16], b[64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) a[i] = b[i] = 0x3f80;
  fence_async();
  __syncthreads();
  float sums[32];
  fence_products();
  multiply64<0>(sums, describe(a, 128, 256, 0), describe(b, 128, 256, 0), 0);
  commit_products();
  if (!kFaulty) await_products<0>();
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(shared_address(&b[threadIdx.x])), "h"((short)0) : "memory");  // rewrite
  await_products<0>();
  out[threadIdx.x] = sums[0];
}
template __global__ void rewritten_product<true>(float*);
template __global__ void rewritten_product<false>(float*);

// One group too many is left in flight.
template <bool kFaulty>
__global__ void one_product_too_many(float* out) {
  __shared__ __align__(1024) uint16_t a[64 * 16], b[64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) a[i] = b[i] = 0x3f80;
  fence_async();
  __syncthreads();
  float first[32], second[32];
  fence_products();
  multiply64<0>(first, describe(a, 128, 256, 0), describe(b, 128, 256, 0), 0);
  commit_products();
  multiply64<0>(second, describe(a, 128, 256, 0), describe(b, 128, 256, 0), 0);
  commit_products();
  await_products<kFaulty ? 1 : 0>();
  float x;
  asm volatile("add.f32 %0, %1, %2;" : "=f"(x) : "f"(first[0]), "f"(second[0]));  // add
  await_products<0>();
  out[threadIdx.x] = x;
}
template __global__ void one_product_too_many<true>(float*);
template __global__ void one_product_too_many<false>(float*);

// Warps of a warpgroup with different matrices.
template <bool kFaulty>
__global__ void disagreeing(float* out) {
  __shared__ __align__(1024) uint16_t a[64 * 16], b[2][64 * 16];
  for (int i = threadIdx.x; i < 64 * 16; i += 128) a[i] = b[0][i] = b[1][i] = 0x3f80;
  fence_async();
  __syncthreads();
  float sums[32];
  fence_products();
  multiply64<0>(sums, describe(a, 128, 256, 0), describe(b[kFaulty ? threadIdx.x / 64 : 0], 128, 256, 0), 0);  // differ
  commit_products();
  await_products<0>();
  out[threadIdx.x] = sums[0];
}
template __global__ void disagreeing<true>(float*);
template __global__ void disagreeing<false>(float*);

// An mbarrier is waited for a second time though nobody arms it again.
template <bool kFaulty>
__global__ void not_armed_again(const float* x, float* out) {
  __shared__ __align__(128) float tile[32];
  __shared__ uint64_t gate;
  if (threadIdx.x == 0) {
    init(&gate, 1);
    fence_init();
    expect(&gate, 128);
    load_bulk(tile, x, 128, &gate);
  }
  __syncwarp();
  await(&gate, 0);
  out[threadIdx.x] = tile[threadIdx.x];
  __syncwarp();
  if (threadIdx.x == 0) {
    if (!kFaulty) expect(&gate, 128);
    load_bulk(tile, x + 32, 128, &gate);
  }
  __syncwarp();
  await(&gate, 1);  // again
  out[32 + threadIdx.x] = tile[threadIdx.x];
}
template __global__ void not_armed_again<true>(const float*, float*);
template __global__ void not_armed_again<false>(const float*, float*);

// A number of bytes that is no multiple of 16, and a box off its alignment.
template <bool kFaulty>
__global__ void odd_bytes(const float* x, float* out) {
  __shared__ __align__(128) float tile[32];
  __shared__ uint64_t gate;
  if (threadIdx.x == 0) {
    init(&gate, 1);
    fence_init();
    expect(&gate, 64);
    load_bulk(tile, x, kFaulty ? 60 : 64, &gate);  // odd
  }
  __syncwarp();
  await(&gate, 0);
  out[threadIdx.x] = tile[threadIdx.x % 16];
}
template __global__ void odd_bytes<true>(const float*, float*);
template __global__ void odd_bytes<false>(const float*, float*);

template <bool kFaulty>
__global__ void off_alignment(const __grid_constant__ TensorMap map, float* out) {
  __shared__ __align__(1024) float tile[2][64];
  __shared__ uint64_t gate;
  float* const to = &tile[0][kFaulty ? 16 : 0];
  if (threadIdx.x == 0) {
    init(&gate, 1);
    fence_init();
    expect(&gate, 128);
    load_tile(to, map, 0, 0, &gate);  // off
  }
  __syncwarp();
  await(&gate, 0);
  out[threadIdx.x] = to[threadIdx.x];
}
template __global__ void off_alignment<true>(const __grid_constant__ TensorMap, float*);
template __global__ void off_alignment<false>(const __grid_constant__ TensorMap, float*);

// Registers: fewer than there are, by .inc.
template <bool kFaulty>
__global__ void __launch_bounds__(128) fewer_by_inc(float* out) {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 200;");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kFaulty ? 104 : 208));  // inc
  out[threadIdx.x] = 1;
}
template __global__ void fewer_by_inc<true>(float*);
template __global__ void fewer_by_inc<false>(float*);

// Two arrivals at the cluster's barrier without a wait between.
template <bool kFaulty>
__global__ void arrives_twice(float* out) {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  if (!kFaulty) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");  // second
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  out[threadIdx.x] = 1;
}
template __global__ void arrives_twice<true>(float*);
template __global__ void arrives_twice<false>(float*);

// The state of an arrival, waited for.
__global__ void by_state(int* out) {
  __shared__ uint64_t gate;
  __shared__ int slot[64];
  if (threadIdx.x == 0) init(&gate, 64);
  __syncthreads();
  slot[threadIdx.x] = threadIdx.x;
  asm volatile(
      "{.reg .pred done; .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];"
      " again: mbarrier.try_wait.shared::cta.b64 done, [%0], state; @!done bra again;}" ::"r"(shared_address(&gate))
      : "memory");
  out[threadIdx.x] = slot[63 - threadIdx.x];
}

// A phase that bytes are told of by hand: the others sleep until it is over.
__global__ void by_hand(int* out) {
  __shared__ int slot;
  __shared__ uint64_t gate;
  if (threadIdx.x == 0) init(&gate, 1);
  __syncthreads();
  if (threadIdx.x == 32) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(shared_address(&gate)) : "memory");
    slot = 7;
    arrive(&gate);
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(shared_address(&gate)) : "memory");
  }
  asm volatile(
      "{.reg .pred done; again: mbarrier.test_wait.parity.shared::cta.b64 done, [%0], 0; @done bra over;"
      " nanosleep.u32 100; bra again; over:}" ::"r"(shared_address(&gate))
      : "memory");
  out[threadIdx.x] = slot;
}
