// The instructions of sm_90a that the kernels beside this are made of.
#pragma once
#include <cstdint>

struct alignas(64) TensorMap {
  unsigned char opaque[128];
};

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- mbarriers
__device__ __forceinline__ void init(uint64_t* gate, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(gate)), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void expect(uint64_t* gate, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(gate)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* gate) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(gate)) : "memory");
}
__device__ __forceinline__ uint32_t in_block(const void* p, uint32_t rank) {
  uint32_t address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
  return address;
}
__device__ __forceinline__ void arrive_remote(uint64_t* gate, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(in_block(gate, rank)) : "memory");
}
__device__ __forceinline__ void await(uint64_t* gate, uint32_t parity) {
  asm volatile(
      "{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra again;}" ::"r"(
          shared_address(gate)),
      "r"(parity)
      : "memory");
}

// ---- copies
__device__ __forceinline__ void load_bulk(void* to, const void* from, uint32_t bytes, uint64_t* gate) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(gate))
               : "memory");
}
__device__ __forceinline__ void store_bulk(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void load_tile(void* to, const TensorMap& map, int x, int y, uint64_t* gate) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(gate))
      : "memory");
}
__device__ __forceinline__ void load_tile_to(void* to, const TensorMap& map, int x, int y, uint64_t* gate, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(shared_address(gate)), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void store_tile(const TensorMap& map, int x, int y, const void* from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
               "r"(y), "r"(shared_address(from))
               : "memory");
}
__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void await_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
template <int kPending>
__device__ __forceinline__ void await_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- products of warpgroups
__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// mode: 0 none, 1 128 bytes, 2 64, 3 32.
__device__ __forceinline__ uint64_t describe(const void* p, uint32_t leading, uint32_t stride, uint64_t mode) {
  return (shared_address(p) & 0x3ffff) >> 4 | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | mode << 62;
}

#define FAGEN_ROW(d, n) "+f"((d)[(n)]), "+f"((d)[(n) + 1]), "+f"((d)[(n) + 2]), "+f"((d)[(n) + 3]), "+f"((d)[(n) + 4]), "+f"((d)[(n) + 5]), "+f"((d)[(n) + 6]), "+f"((d)[(n) + 7])
#define FAGEN_D32 \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31}"
// 64 by 64 by 16 of bf16; A along K from shared memory, B along K or (kTransposed) along N.
template <int kTransposed>
__device__ __forceinline__ void multiply64(float (&d)[32], uint64_t a, uint64_t b, int adds) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " FAGEN_D32
               ", %32, %33, p, 1, 1, 0, %35;}"
               : FAGEN_ROW(d, 0), FAGEN_ROW(d, 8), FAGEN_ROW(d, 16), FAGEN_ROW(d, 24)
               : "l"(a), "l"(b), "r"(adds), "n"(kTransposed));
}

// ---- clusters
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
