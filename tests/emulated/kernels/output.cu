// compute_80
// What a kernel says: printf and assert.
#include <cassert>
#include <cstdio>

__global__ void says(int n, double x) {
  if (threadIdx.x == 3) {
    const char* name = "lane";
    printf("%s %d of %u: %.3f %5.1e %c %llx 100%%\n", name, threadIdx.x, n, x, 1.5f, 'c', 1ull << 40);
    printf("nothing\n");
  }
}

__global__ void asserts(const int* x, int n) {
  assert(x[threadIdx.x] < n);  // assert
}
