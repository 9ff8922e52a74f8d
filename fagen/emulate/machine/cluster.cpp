// Clusters: their barrier, and addresses of each other's shared memory. An address of another block's has that block's
// rank, and one, in bits 24 and on; one of the thread's own may have nothing there. Source: PTX ISA, barrier.cluster,
// mapa, getctarank.
#include "machine.h"

namespace fagen::emulate {

void cluster_arrive(Thread& t, bool release) {
  Machine& m = *t.machine;
  Cluster& cluster = *t.block->cluster;
  u32& own = more(t).cluster_phase;
  if (own > cluster.phase) {
    raise(m, t, FaultKind::kBarrier, "a second arrival at the cluster's barrier without a wait for the first");
  }
  ++own;
  if (release && m.checks) {
    join(cluster.gathering, t.block->index, more(t).clock);
    join(cluster.gathering, more(t).others);
  }
  tick(t);
  ++cluster.arrived;
  u32 expected = 0;
  for (const Block* block : cluster.blocks) expected += block->threads;
  if (cluster.arrived < expected) return;
  ++cluster.phase;
  cluster.arrived = 0;
  cluster.completed = std::move(cluster.gathering);
  cluster.gathering.clear();
  ++m.progress;
}

bool cluster_wait(Thread& t, bool acquire) {
  Cluster& cluster = *t.block->cluster;
  if (more(t).cluster_phase == 0) {
    raise(*t.machine, t, FaultKind::kBarrier, "a wait at the cluster's barrier without an arrival");
  }
  if (more(t).cluster_phase > cluster.phase) return false;
  if (acquire && t.machine->checks) take_in(t, cluster.completed);
  return true;
}

u64 map_shared(Thread& t, u64 address, u32 rank, bool generic) {
  if (rank >= t.block->cluster->blocks.size()) {
    raise(*t.machine, t, FaultKind::kProgram,
          "mapa: rank " + std::to_string(rank) + " in a cluster of " + std::to_string(t.block->cluster->blocks.size()));
  }
  const u64 window = generic ? kSharedWindow : 0;
  return window | ((address - window) & 0xffffff) | u64{rank + 1} << 24;
}

u32 rank_of(Thread& t, u64 address, bool generic) {
  const u64 rank = (address - (generic ? kSharedWindow : 0)) >> 24;
  return rank == 0 ? t.block->rank : static_cast<u32>(rank - 1);
}

}  // namespace fagen::emulate
