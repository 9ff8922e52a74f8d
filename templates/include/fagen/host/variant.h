// What the host unit knows of each variant: rows of a static table, written out by the module's binding.
#pragma once
#include <fagen/host/driver.h>
#include <fagen/host/tensor.h>
#include <fagen/params.h>

namespace fagen::host {
namespace {

// An extent of a param's shape: a literal length, or one of these.
constexpr int64_t kB = -1, kH = -2, kHk = -3, kSq = -4, kSkv = -5;
constexpr int64_t kAny = -6;  // `n`: any length, the same wherever it stands in one param's shape

inline const char* name_of_extent(int64_t extent) {
  static const char* names[] = {"B", "H", "Hk", "Sq", "Skv", "n"};
  return names[-extent - 1];
}

struct ParamRow {
  const char* name;
  Dtype dtype;
  bool grad;
  int32_t rank;
  int64_t extents[kMaxRank];
};

// How its kernels are run, by the file of their target (cpu.h). They are given what the ops know, and see to the rest:
// working memory, threads. Without backward, that one is null.
struct Launches {
  void (*forward)(const Driver&, ForwardParams&);
  void (*tile_counts)(const Driver&, ForwardParams&, TileCounts&);
  void (*backward)(const Driver&, BackwardParams&);
};

struct VariantRow {
  const char* name;
  Dtype dtype;
  int64_t head_dim, value_dim;
  bool heads_first;  // layout [B, H, S, D] rather than [B, S, H, D]
  bool sink;
  int32_t param_count;
  const ParamRow* params;
  Launches launches;
};

}  // namespace
}  // namespace fagen::host
