// compute_80
// Waits that end, though not at once.

// Gives up after so many tries.
__global__ void gives_up(volatile int* flag, int* out, int most) {
  int tries = 0;
  while (*flag == 0 && tries < most) ++tries;
  out[threadIdx.x] = tries;
}

// A barrier of the whole grid, whose blocks must all be there.
__global__ void meets(unsigned* arrived, unsigned* out) {
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(arrived, 1u);
    while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) {}
    __threadfence();
    out[blockIdx.x] = *static_cast<volatile unsigned*>(arrived);
  }
}

// A lock that each thread takes in turn; the counter behind it needs no more.
template <bool kFaulty>
__global__ void locked(int* lock, int* count) {
  for (bool done = false; !done;) {
    if (atomicCAS(lock, 0, 1) == 0) {
      if (!kFaulty) __threadfence();
      ++*count;  // behind a lock
      if (!kFaulty) __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
template __global__ void locked<true>(int*, int*);
template __global__ void locked<false>(int*, int*);

// Blocks take tickets in order; each waits for the one before it.
__global__ void in_turn(unsigned* ticket, volatile unsigned* turn, unsigned* order) {
  if (threadIdx.x != 0) return;
  const unsigned mine = atomicAdd(ticket, 1u);
  while (*turn != mine) {}
  __threadfence();
  order[mine] = mine == 0 ? 1 : order[mine - 1] * 2 + 1;
  __threadfence();
  *turn = mine + 1;
}
