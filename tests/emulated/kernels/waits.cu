// compute_80
// Waits that never end, and barriers that are used wrongly.

// Threads that have exited do not arrive.
template <bool kFaulty>
__global__ void exited(int* out, int n) {
  if (kFaulty && threadIdx.x >= n) return;
  __syncthreads();  // where the exited are missed
  out[threadIdx.x] = 1;
}
template __global__ void exited<true>(int*, int);
template __global__ void exited<false>(int*, int);

// Warp 0 waits for 64 threads, of which warp 1 should be 32.
template <bool kFaulty>
__global__ void lost_arrival(int* out) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;" ::: "memory");  // wait for arrivals
  } else if (!kFaulty) {
    asm volatile("bar.arrive 1, 64;" ::: "memory");
  }
  out[threadIdx.x] = 1;
}
template __global__ void lost_arrival<true>(int*);
template __global__ void lost_arrival<false>(int*);

template <bool kFaulty>
__global__ void spin(volatile int* flag, int* out) {
  if (threadIdx.x == 32 && !kFaulty) *flag = 1;
  if (threadIdx.x == 3) {
    while (*flag == 0) {}  // spin
    out[0] = 1;
  }
}
template __global__ void spin<true>(volatile int*, int*);
template __global__ void spin<false>(volatile int*, int*);

// Two lanes of a warp each wait for what the other does afterwards.
template <bool kFaulty>
__global__ void crossed(volatile int* flags, int* out) {
  const int t = threadIdx.x;
  if (t < 2) {
    if (!kFaulty) flags[t] = 1;
    while (flags[1 - t] == 0) {}  // crossed
    flags[t] = 1;
    out[t] = 1;
  }
}
template __global__ void crossed<true>(volatile int*, int*);
template __global__ void crossed<false>(volatile int*, int*);

// Half of a warp comes to another barrier instruction.
template <bool kFaulty>
__global__ void diverged(int* out) {
  if (kFaulty && threadIdx.x < 16) {
    asm volatile("bar.sync 0;" ::: "memory");
    out[threadIdx.x] = 2;
  } else {
    asm volatile("bar.sync 0;" ::: "memory");
    out[threadIdx.x] = 1;
  }
}
template __global__ void diverged<true>(int*);
template __global__ void diverged<false>(int*);

// The same, with barriers that may be diverged.
__global__ void diverged_unaligned(int* out) {
  if (threadIdx.x < 16) {
    asm volatile("barrier.sync 0;" ::: "memory");
    out[threadIdx.x] = 2;
  } else {
    asm volatile("barrier.sync 0;" ::: "memory");
    out[threadIdx.x] = 1;
  }
}

template <bool kFaulty>
__global__ void odd_count(int* out) {
  const int count = kFaulty ? 48 : 64;
  asm volatile("bar.sync 2, %0;" ::"r"(count) : "memory");  // odd count
  out[threadIdx.x] = 1;
}
template __global__ void odd_count<true>(int*);
template __global__ void odd_count<false>(int*);

template <bool kFaulty>
__global__ void two_counts(int* out) {
  const int count = kFaulty && threadIdx.x >= 32 ? 96 : 64;
  asm volatile("bar.sync 2, %0;" ::"r"(count) : "memory");  // two counts
  out[threadIdx.x] = 1;
}
template __global__ void two_counts<true>(int*);
template __global__ void two_counts<false>(int*);

template <bool kFaulty>
__global__ void no_such_barrier(int* out, int which) {
  asm volatile("bar.sync %0, 64;" ::"r"(kFaulty ? which : 15) : "memory");  // no such barrier
  out[threadIdx.x] = 1;
}
template __global__ void no_such_barrier<true>(int*, int);
template __global__ void no_such_barrier<false>(int*, int);

template <bool kFaulty>
__global__ void trapped(int* out, int limit) {
  if (kFaulty && threadIdx.x == limit) __trap();  // trap
  out[threadIdx.x] = 1;
}
template __global__ void trapped<true>(int*, int);
template __global__ void trapped<false>(int*, int);

__global__ void __launch_bounds__(64) bounded(int* out) {
  extern __shared__ int slots[];
  slots[threadIdx.x] = 1;
  out[threadIdx.x] = slots[threadIdx.x];
}
