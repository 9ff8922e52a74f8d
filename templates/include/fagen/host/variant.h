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

struct VariantRow;

// What a launch is made for: the machine, the variant, and which of the machine's devices holds the tensors.
struct Call {
  const Driver& driver;
  const VariantRow& variant;
  Device device;
};

// How its kernels are run, by the file of their target (cpu.h, cuda.h). They are given what the ops know, and see to the
// rest: working memory, threads, launches. Counts are where the kernel can write them. Without backward, that one is
// null.
struct Launches {
  void (*forward)(const Call&, ForwardParams&);
  void (*tile_counts)(const Call&, ForwardParams&, TileCounts*);
  void (*backward)(const Call&, BackwardParams&);
};

struct VariantRow {
  const char* name;
  Dtype dtype;
  int64_t head_dim, value_dim;
  bool heads_first;  // layout [B, H, S, D] rather than [B, S, H, D]
  bool sink;
  bool dropout;
  int32_t param_count;
  const ParamRow* params;
  Launches launches;
  const Image* forward_image;            // null for a CPU
  const BackwardImage* backward_image;  // null for a CPU, and without backward
};

}  // namespace
}  // namespace fagen::host
