// compute_90a
// Bulk and tensor copies.
#include "hopper.cuh"

// What one box looks like in shared memory.
#define FAGEN_BOX(rank, coordinates, ...)                                                                              \
  __global__ void box##rank(const __grid_constant__ TensorMap map, uint4* out, int chunks, int c0, int c1, int c2,      \
                            int c3, int c4) {                                                                          \
    extern __shared__ __align__(1024) uint4 tile[];                                                                    \
    __shared__ uint64_t gate;                                                                                          \
    if (threadIdx.x == 0) {                                                                                            \
      init(&gate, 1);                                                                                                  \
      fence_init();                                                                                                    \
      expect(&gate, 16 * chunks);                                                                                      \
      asm volatile("cp.async.bulk.tensor." #rank                                                                       \
                   "d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, " coordinates  \
                   "], [%2], %3;" ::"r"(shared_address(tile)),                                                         \
                   "l"(&map), "r"(shared_address(&gate)), "l"(0x1000000000000000ull), __VA_ARGS__                      \
                   : "memory");                                                                                        \
    }                                                                                                                  \
    __syncthreads();                                                                                                   \
    await(&gate, 0);                                                                                                   \
    for (int n = threadIdx.x; n < chunks; n += blockDim.x) out[n] = tile[n];                                           \
  }
FAGEN_BOX(1, "{%4}", "r"(c0))
FAGEN_BOX(2, "{%4, %5}", "r"(c0), "r"(c1))
FAGEN_BOX(3, "{%4, %5, %6}", "r"(c0), "r"(c1), "r"(c2))
FAGEN_BOX(4, "{%4, %5, %6, %7}", "r"(c0), "r"(c1), "r"(c2), "r"(c3))
FAGEN_BOX(5, "{%4, %5, %6, %7, %8}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4))

// The box at (0, 0) of one map to (x, y) of another; added there, if kAdds.
template <bool kAdds>
__global__ void move(const __grid_constant__ TensorMap from, const __grid_constant__ TensorMap to, int bytes, int x, int y) {
  extern __shared__ __align__(1024) uint4 tile[];
  __shared__ uint64_t gate;
  if (threadIdx.x != 0) return;
  asm volatile("prefetch.tensormap [%0];" ::"l"(&from) : "memory");
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %1}];" ::"l"(&from), "r"(0) : "memory");
  init(&gate, 1);
  fence_init();
  expect(&gate, bytes);
  load_tile(tile, from, 0, 0, &gate);
  await(&gate, 0);
  if (kAdds) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to),
                 "r"(x), "r"(y), "r"(shared_address(tile))
                 : "memory");
  } else {
    store_tile(to, x, y, tile);
  }
  commit_bulk();
  await_bulk<0>();
}
template __global__ void move<false>(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap, int, int, int);
template __global__ void move<true>(const __grid_constant__ TensorMap, const __grid_constant__ TensorMap, int, int, int);

// Plain copies in and out, doubled in between. kFault: 1 no proxy fence, 2 no wait for the copy, 3 too few bytes
// expected, 4 too many, 5 no fence of the mbarrier, 6 the tile is changed while it is stored, 7 nobody waits before the
// block ends, 8 the same phase is waited for twice.
template <int kFault>
__global__ void twice(const float* x, float* out) {
  __shared__ __align__(128) float tile[2][32];
  __shared__ uint64_t gate;
  const int t = threadIdx.x;
  if (t == 0) {
    init(&gate, 1);
    if (kFault != 5) fence_init();
  }
  __syncthreads();
  for (int n = 0; n < 2; ++n) {
    float(&slot)[32] = tile[n];
    if (t == 0) {
      expect(&gate, kFault == 3 ? 64 : kFault == 4 ? 256 : 128);  // expect
      load_bulk(slot, x + 32 * n, 128, &gate);  // load
    }
    __syncwarp();
    if (kFault != 2) await(&gate, kFault == 8 ? 0 : n);  // await
    slot[t] = 2 * slot[t];  // double
    if (kFault != 1) fence_async();
    __syncwarp();
    if (t == 0) {
      store_bulk(out + 32 * n, slot, 128);  // store
      commit_bulk();
      if (kFault != 7 && kFault != 6) await_bulk_read<0>();
    }
    __syncwarp();
    if (kFault != 7) slot[t] = 0;  // change
    if (t == 0 && kFault == 6) await_bulk_read<0>();
  }
}
template __global__ void twice<0>(const float*, float*);
template __global__ void twice<1>(const float*, float*);
template __global__ void twice<2>(const float*, float*);
template __global__ void twice<3>(const float*, float*);
template __global__ void twice<4>(const float*, float*);
template __global__ void twice<5>(const float*, float*);
template __global__ void twice<6>(const float*, float*);
template __global__ void twice<7>(const float*, float*);
template __global__ void twice<8>(const float*, float*);

// Plain reductions of a tile into global memory, by every thread's own 16 bytes.
#define FAGEN_REDUCE(name, what)                                                                                  \
  __global__ void reduce_##name(const uint4* x, uint4* out) {                                                     \
    __shared__ uint4 tile[32];                                                                                    \
    tile[threadIdx.x] = x[threadIdx.x];                                                                           \
    fence_async();                                                                                                \
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group." what " [%0], [%1], 16;" ::"l"(             \
                     out + threadIdx.x / 2),                                                                      \
                 "r"(shared_address(tile + threadIdx.x))                                                          \
                 : "memory");                                                                                     \
    commit_bulk();                                                                                                \
    await_bulk<0>();                                                                                              \
  }
FAGEN_REDUCE(f32, "add.f32")
FAGEN_REDUCE(f16, "add.noftz.f16")
FAGEN_REDUCE(bf16, "add.noftz.bf16")
FAGEN_REDUCE(s32, "max.s32")
FAGEN_REDUCE(u64, "add.u64")
