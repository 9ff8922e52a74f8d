// compute_80
// Which lines run, and how often: `n` times, `most` (by all 32 lanes), or `never`, where n is less than 32.

__device__ __forceinline__ float rooted(float x) {
  return sqrtf(x);
}

__device__ __forceinline__ float twice_rooted(float x) {
  return rooted(rooted(x));
}

__device__ __noinline__ void keep(float* out, float x) {
  *out = x;  // n
}

__global__ void branches(float* out, int n) {
  const int lane = threadIdx.x;
  if (lane >= n) return;  // most
  if (n > 100) {  // n
    keep(out + lane, 1.0f + lane);  // never
    return;
  }
  keep(out + lane, 2.0f);  // n
}

__global__ void predicated(int* out, int n) {
  asm volatile("{ .reg .pred p;\n setp.lt.s32 p, %1, 100;\n @!p st.global.s32 [%0], %1;\n }" ::"l"(out), "r"(n));
  asm volatile("red.global.add.s32 [%0], %1;" ::"l"(out), "r"(n));
}

// Its calls are told apart by what each inlined, where the PTX says by which it was: not of what twice_rooted calls.
__global__ void inlined(float* out, int n) {
  float x = out[threadIdx.x];  // most
  if (n > 100)
    x = twice_rooted(x + 1.0f);  // never
  if (n < 100)
    x = rooted(x);  // most
  if (n < 99)
    x = twice_rooted(x);  // most
  if (n > 100)
    x = rooted(x);  // never
  out[threadIdx.x] = x;  // most
}
