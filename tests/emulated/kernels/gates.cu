// compute_80
// mbarriers.

__device__ __forceinline__ unsigned shared_address(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void init(unsigned gate, unsigned count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(gate), "r"(count) : "memory");  // init
}
__device__ __forceinline__ void arrive(unsigned gate) {
  asm volatile("{.reg .b64 s; mbarrier.arrive.shared.b64 s, [%0];}" ::"r"(gate) : "memory");  // arrive
}
__device__ __forceinline__ void await(unsigned gate, unsigned parity) {
  unsigned done;
  do {
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(gate), "r"(parity) : "memory");
  } while (!done);  // test
}

// Warp 1 passes a tile to warp 0 through one slot, each time after warp 0 has emptied it.
template <int kFault>
__global__ void pass(int* out, int tiles) {
  __shared__ unsigned long long gates[2];
  __shared__ int slot[32];
  const unsigned full = shared_address(&gates[0]), empty = shared_address(&gates[1]);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    init(full, 32);
    init(empty, 32);
  }
  if (kFault != 1) __syncthreads();
  int sum = 0;
  for (int n = 0; n < tiles; ++n) {
    if (threadIdx.x >= 32) {
      if (kFault != 2) await(empty, (n & 1) ^ 1);
      slot[lane] = n + lane;  // fill
      arrive(full);
    } else {
      if (kFault != 3) await(full, n & 1);
      sum += slot[31 - lane];  // take
      if (kFault != 4) arrive(empty);
    }
  }
  if (threadIdx.x < 32) out[lane] = sum;
}
template __global__ void pass<0>(int*, int);
template __global__ void pass<1>(int*, int);
template __global__ void pass<2>(int*, int);
template __global__ void pass<3>(int*, int);
template __global__ void pass<4>(int*, int);

template <bool kFaulty>
__global__ void too_many(int* out) {
  __shared__ unsigned long long gate;
  const unsigned at = shared_address(&gate);
  if (threadIdx.x == 0) {
    init(at, 32);
    asm volatile("{.reg .b64 s; mbarrier.arrive.noComplete.shared.b64 s, [%0], %1;}" ::"r"(at), "r"(kFaulty ? 33 : 31) : "memory");  // too many
  }
  out[threadIdx.x] = 1;
}
template __global__ void too_many<true>(int*);
template __global__ void too_many<false>(int*);

// An arrival that is promised not to be the phase's last.
template <bool kFaulty>
__global__ void completes(int* out) {
  __shared__ unsigned long long gate;
  const unsigned at = shared_address(&gate);
  if (threadIdx.x == 0) init(at, kFaulty ? 32 : 33);
  __syncthreads();
  asm volatile("{.reg .b64 s; mbarrier.arrive.noComplete.shared.b64 s, [%0], 1;}" ::"r"(at) : "memory");  // completes
  out[threadIdx.x] = 1;
}
template __global__ void completes<true>(int*);
template __global__ void completes<false>(int*);

template <bool kFaulty>
__global__ void not_initialised(int* out) {
  __shared__ unsigned long long gates[2];
  if (threadIdx.x == 0) init(shared_address(&gates[0]), 1);
  __syncthreads();
  if (threadIdx.x == 1) arrive(shared_address(&gates[kFaulty]));
  out[threadIdx.x] = 1;
}
template __global__ void not_initialised<true>(int*);
template __global__ void not_initialised<false>(int*);

template <bool kFaulty>
__global__ void twice(int* out) {
  __shared__ unsigned long long gate;
  if (threadIdx.x == 0) {
    init(shared_address(&gate), 1);
    if (!kFaulty) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(&gate)) : "memory");
    init(shared_address(&gate), 2);
  }
  out[threadIdx.x] = 1;
}
template __global__ void twice<true>(int*);
template __global__ void twice<false>(int*);

// A gate's bytes are the gate's own until it is invalidated.
template <bool kFaulty>
__global__ void scribbled(int* out) {
  __shared__ unsigned long long gate;
  if (threadIdx.x == 0) {
    init(shared_address(&gate), 1);
    if (!kFaulty) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(shared_address(&gate)) : "memory");
    gate = 3;  // scribble
  }
  out[threadIdx.x] = 1;
}
template __global__ void scribbled<true>(int*);
template __global__ void scribbled<false>(int*);

template <bool kFaulty>
__global__ void no_arrivals(int* out) {
  __shared__ unsigned long long gate;
  if (threadIdx.x == 0) init(shared_address(&gate), kFaulty ? 0 : 1);
  out[threadIdx.x] = 1;
}
template __global__ void no_arrivals<true>(int*);
template __global__ void no_arrivals<false>(int*);
