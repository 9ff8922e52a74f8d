// compute_90a
// Blocks that share.
#include "hopper.cuh"

// Two blocks load a half each of every tile of 64 rows by 32 floats, for both; each sums it. kFault: 1 they do not wait
// for each other's mbarriers at first, 2 a block gives its slot back to itself alone, 3 nor waits for the other to end.
template <int kFault>
__global__ void __cluster_dims__(2, 1, 1) shared_tiles(const __grid_constant__ TensorMap map, float* out, int tiles) {
  extern __shared__ __align__(1024) float tile[];  // 64 by 32
  __shared__ uint64_t full, empty;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    init(&full, 1);
    init(&empty, kFault == 2 ? 1 : 2);
    fence_init();
  }
  if (kFault == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  float sum = 0;
  for (int n = 0; n < tiles; ++n) {
    if (threadIdx.x == 0) {
      await(&empty, (n & 1) ^ 1);
      expect(&full, 64 * 32 * 4);
      load_tile_to(tile + 32 * 32 * rank, map, 0, 64 * n + 32 * rank, &full, 3);  // multicast
    }
    __syncwarp();
    await(&full, n & 1);
    for (int row = 0; row < 64; ++row) sum += tile[32 * row + threadIdx.x];  // sum
    __syncwarp();
    if (threadIdx.x == 0) {
      arrive_remote(&empty, rank);
      if (kFault != 2) arrive_remote(&empty, rank ^ 1);  // release
    }
  }
  out[32 * blockIdx.x + threadIdx.x] = sum;
  if (kFault != 3) cluster_sync();
}
template __global__ void shared_tiles<0>(const __grid_constant__ TensorMap, float*, int);
template __global__ void shared_tiles<1>(const __grid_constant__ TensorMap, float*, int);
template __global__ void shared_tiles<2>(const __grid_constant__ TensorMap, float*, int);
template __global__ void shared_tiles<3>(const __grid_constant__ TensorMap, float*, int);

// Each block writes into its neighbour's memory and reads its own. kFault: 1 no barrier in between, 2 one that does not
// release, 3 a block that leaves while others write into it.
template <int kFault>
__global__ void ring(int* out) {
  __shared__ int slot[32];
  uint32_t size;
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  const uint32_t rank = cluster_rank(), to = in_block(&slot[threadIdx.x], (rank + 1) % size);
  if (kFault == 3 && rank == 1) return;
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(100 * rank + threadIdx.x) : "memory");  // give
  if (kFault == 2) {
    asm volatile("barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else if (kFault != 1 && kFault != 3) {
    cluster_sync();
  } else {
    __syncwarp();
  }
  if (kFault != 3) out[32 * blockIdx.x + threadIdx.x] = slot[threadIdx.x];  // have
}
template __global__ void ring<0>(int*);
template __global__ void ring<1>(int*);
template __global__ void ring<2>(int*);
template __global__ void ring<3>(int*);

// A bulk copy from each block's memory into its neighbour's, onto the neighbour's mbarrier; generic addresses mapped.
template <bool kFaulty>
__global__ void __cluster_dims__(2, 1, 1) send(int* out) {
  __shared__ __align__(128) int mine[32], theirs[32];
  __shared__ uint64_t gate;
  const uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    init(&gate, 1);
    fence_init();
    expect(&gate, 128);
  }
  mine[threadIdx.x] = 100 * rank + threadIdx.x;
  if (!kFaulty) fence_async();
  cluster_sync();
  if (threadIdx.x == 0) {
    asm volatile(
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            in_block(theirs, rank ^ 1)),
        "r"(shared_address(mine)), "r"(128), "r"(in_block(&gate, rank ^ 1))
        : "memory");  // send
  }
  await(&gate, 0);
  uint64_t there;
  uint32_t its_rank;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(&mine[threadIdx.x]), "r"(rank ^ 1));
  asm volatile("getctarank.u64 %0, %1;" : "=r"(its_rank) : "l"(there));
  const int far = *reinterpret_cast<int*>(there);
  out[32 * blockIdx.x + threadIdx.x] = theirs[threadIdx.x] == far && its_rank == (rank ^ 1) ? far : -1;
  cluster_sync();
}
template __global__ void send<false>(int*);
template __global__ void send<true>(int*);
