// compute_80
// Two accesses that nothing orders, each with what would order them.

template <bool kFaulty>
__global__ void shared_race(int* out) {
  __shared__ int slot[64];
  slot[threadIdx.x] = 0;
  __syncthreads();
  slot[threadIdx.x] = threadIdx.x;  // shared write
  if (!kFaulty) __syncthreads();
  if (threadIdx.x == 40) out[0] = slot[5];  // shared read
}
template __global__ void shared_race<true>(int*);
template __global__ void shared_race<false>(int*);

// Within a warp: lanes need no less.
template <bool kFaulty>
__global__ void warp_race(int* out) {
  __shared__ int slot[32];
  slot[threadIdx.x] = 0;
  __syncwarp();
  slot[threadIdx.x] = threadIdx.x;  // warp write
  if (!kFaulty) __syncwarp();
  if (threadIdx.x == 3) out[0] = slot[17];  // warp read
}
template __global__ void warp_race<true>(int*);
template __global__ void warp_race<false>(int*);

// A shuffle brings lanes together and orders nothing.
template <bool kFaulty>
__global__ void shuffle_race(int* out) {
  __shared__ int slot[32];
  slot[threadIdx.x] = 0;
  __syncwarp();
  slot[threadIdx.x] = threadIdx.x;  // shuffle write
  const int mine = __shfl_xor_sync(~0u, static_cast<int>(threadIdx.x), 1);
  if (!kFaulty) __syncwarp();
  if (threadIdx.x == 8) out[0] = mine + slot[9];  // shuffle read
}
template __global__ void shuffle_race<true>(int*);
template __global__ void shuffle_race<false>(int*);

template <bool kFaulty>
__global__ void global_race(int* data, int* out) {
  if (threadIdx.x == 33) data[2] = 7;  // global write
  if (!kFaulty) __syncthreads();
  if (threadIdx.x == 1) out[0] = data[2];  // global read
}
template __global__ void global_race<true>(int*, int*);
template __global__ void global_race<false>(int*, int*);

// Blocks that write the same place.
template <bool kFaulty>
__global__ void block_race(int* out) {
  if (threadIdx.x != 9) return;
  if (kFaulty) {
    out[4] = 1;  // block write
  } else {
    atomicAdd(out + 4, 1);
  }
}
template __global__ void block_race<true>(int*);
template __global__ void block_race<false>(int*);

// An atomic operation does not order a plain access of the same place.
template <bool kFaulty>
__global__ void mixed_race(int* out) {
  if (blockIdx.x == 0) atomicAdd(out, 1);  // mixed add
  if (blockIdx.x == 1) {
    if (kFaulty) {
      out[1] = out[0];  // mixed read
    } else {
      out[1] = atomicAdd(out, 0);
    }
  }
}
template __global__ void mixed_race<true>(int*);
template __global__ void mixed_race<false>(int*);

// Scopes and fences. Block 0 writes and raises a flag, block 1 waits for the flag and reads.
__device__ __forceinline__ void raise_flag(unsigned* flag) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void await_flag(const unsigned* flag) {
  unsigned seen;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
  } while (seen == 0);
}

template <bool kFaulty>
__global__ void unfenced_write(int* data, unsigned* flag, int* out) {
  if (blockIdx.x == 0) {
    data[0] = 5;  // unfenced write
    if (!kFaulty) __threadfence();
    raise_flag(flag);
  } else {
    await_flag(flag);
    __threadfence();
    out[0] = data[0];  // unfenced read
  }
}
template __global__ void unfenced_write<true>(int*, unsigned*, int*);
template __global__ void unfenced_write<false>(int*, unsigned*, int*);

template <bool kFaulty>
__global__ void unfenced_read(int* data, unsigned* flag, int* out) {
  if (blockIdx.x == 0) {
    data[0] = 5;  // before the flag
    __threadfence();
    raise_flag(flag);
  } else {
    await_flag(flag);
    if (!kFaulty) __threadfence();
    out[0] = data[0];  // after the flag
  }
}
template __global__ void unfenced_read<true>(int*, unsigned*, int*);
template __global__ void unfenced_read<false>(int*, unsigned*, int*);

template <bool kFaulty>
__global__ void narrow_fence(int* data, unsigned* flag, int* out) {
  if (blockIdx.x == 0) {
    data[0] = 5;  // narrow fence write
    if (kFaulty) {
      __threadfence_block();
    } else {
      __threadfence();
    }
    raise_flag(flag);
  } else {
    await_flag(flag);
    __threadfence();
    out[0] = data[0];  // narrow fence read
  }
}
template __global__ void narrow_fence<true>(int*, unsigned*, int*);
template __global__ void narrow_fence<false>(int*, unsigned*, int*);

template <bool kFaulty>
__global__ void narrow_release(int* data, unsigned* flag, int* out) {
  if (blockIdx.x == 0) {
    data[0] = 5;  // narrow release write
    if (kFaulty) {
      asm volatile("red.release.cta.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");  // narrow release
    } else {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
    }
  } else {
    unsigned seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");  // wide acquire
    } while (seen == 0);
    out[0] = data[0];  // narrow release read
  }
}
template __global__ void narrow_release<true>(int*, unsigned*, int*);
template __global__ void narrow_release<false>(int*, unsigned*, int*);

template <bool kFaulty>
__global__ void narrow_atomic(int* out) {
  if (threadIdx.x != 2) return;
  if (kFaulty) {
    atomicAdd_block(out, 1);  // narrow atomic
  } else {
    atomicAdd(out, 1);
  }
}
template __global__ void narrow_atomic<true>(int*);
template __global__ void narrow_atomic<false>(int*);

// The last block to finish reads what all have written: a counter that each thread's fence goes before.
template <bool kFaulty>
__global__ void last_block(float* parts, unsigned* finished, float* out) {
  __shared__ bool last;
  if (threadIdx.x == 6) parts[blockIdx.x] = 1.0f + blockIdx.x;  // last block write
  if (!kFaulty) __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(finished, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    __threadfence();
    float sum = 0.0f;
    for (int i = 0; i < gridDim.x; ++i) sum += parts[i];  // last block read
    out[0] = sum;
  }
}
template __global__ void last_block<true>(float*, unsigned*, float*);
template __global__ void last_block<false>(float*, unsigned*, float*);
