// compute_80
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_radix_sort.cuh>
extern "C" __global__ void reduce(const int* x, int* o) {
  using R = cub::BlockReduce<int, 128>;
  __shared__ typename R::TempStorage s;
  int v = R(s).Sum(x[blockIdx.x * 128 + threadIdx.x]);
  if (threadIdx.x == 0) o[blockIdx.x] = v;
}
extern "C" __global__ void scan(const int* x, int* o) {
  using S = cub::BlockScan<int, 128>;
  __shared__ typename S::TempStorage s;
  int v;
  S(s).ExclusiveSum(x[threadIdx.x], v);
  o[threadIdx.x] = v;
}
extern "C" __global__ void sort(const unsigned* x, unsigned* o) {
  using S = cub::BlockRadixSort<unsigned, 128, 4>;
  __shared__ typename S::TempStorage s;
  unsigned k[4];
  for (int i = 0; i < 4; ++i) k[i] = x[threadIdx.x * 4 + i];
  S(s).Sort(k);
  for (int i = 0; i < 4; ++i) o[threadIdx.x * 4 + i] = k[i];
}
