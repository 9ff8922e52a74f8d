// compute_80
// What lanes do together, by lanes that are not together.

template <bool kFaulty>
__global__ void not_in_its_mask(int* out) {
  const unsigned mask = kFaulty ? 0xfffff7ffu : 0xffffffffu;
  int value = threadIdx.x;
  asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, %1;" : "+r"(value) : "r"(mask));  // not in its mask
  out[threadIdx.x] = value;
}
template __global__ void not_in_its_mask<true>(int*);
template __global__ void not_in_its_mask<false>(int*);

// Masks that do not agree: the lanes wait for each other for ever.
template <bool kFaulty>
__global__ void two_masks(int* out) {
  const unsigned mask = kFaulty && threadIdx.x == 4 ? 0x7fffffffu : 0xffffffffu;
  unsigned votes;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2;}" : "=r"(votes) : "r"(threadIdx.x), "r"(mask));  // two masks
  out[threadIdx.x] = votes;
}
template __global__ void two_masks<true>(int*);
template __global__ void two_masks<false>(int*);

__device__ __forceinline__ void multiply(float* d, unsigned a, unsigned b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4}, {%5}, {%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a), "r"(b));  // mma
}

template <bool kFaulty>
__global__ void diverged_mma(float* out) {
  float d[4] = {};
  if (kFaulty && threadIdx.x < 8) {
    multiply(d, 0x3c003c00u, 0x3c003c00u);
    d[0] += 1.0f;
  } else {
    multiply(d, 0x3c003c00u, 0x3c003c00u);
  }
  out[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
template __global__ void diverged_mma<true>(float*);
template __global__ void diverged_mma<false>(float*);

template <bool kFaulty>
__global__ void exited_lane(float* out, int n) {
  if (kFaulty && threadIdx.x == n) return;
  float d[4] = {};
  multiply(d, 0x3c003c00u, 0x3c003c00u);
  out[threadIdx.x] = d[0];
}
template __global__ void exited_lane<true>(float*, int);
template __global__ void exited_lane<false>(float*, int);

// One lane's row is not there.
template <bool kFaulty>
__global__ void wrong_row(unsigned* out) {
  __shared__ __align__(16) unsigned rows[32][4];
  for (int i = 0; i < 4; ++i) rows[threadIdx.x][i] = threadIdx.x;
  __syncwarp();
  const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(rows)) + 16 * (kFaulty && threadIdx.x == 6 ? 40 : threadIdx.x);
  unsigned x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(row) : "memory");  // wrong row
  out[threadIdx.x] = x;
}
template __global__ void wrong_row<true>(unsigned*);
template __global__ void wrong_row<false>(unsigned*);

// Lane 5 reads what a matrix load of others may still be reading.
template <bool kFaulty>
__global__ void stored_under(unsigned* out) {
  __shared__ __align__(16) unsigned rows[32][4];
  for (int i = 0; i < 4; ++i) rows[threadIdx.x][i] = threadIdx.x;
  __syncwarp();
  const unsigned row = static_cast<unsigned>(__cvta_generic_to_shared(rows)) + 16 * threadIdx.x;
  unsigned x;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(x) : "r"(row) : "memory");  // matrix read
  if (!kFaulty) __syncwarp();
  if (threadIdx.x == 5) rows[2][1] = x;  // store under it
  out[threadIdx.x] = x;
}
template __global__ void stored_under<true>(unsigned*);
template __global__ void stored_under<false>(unsigned*);
