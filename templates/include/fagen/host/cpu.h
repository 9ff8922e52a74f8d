// The CPU: torch's own threads, memory from torch's allocator, and kernels that are functions of the library.
#pragma once
#include <fagen/host/variant.h>

namespace fagen::host {
namespace {

inline int32_t torch_threads() {
  uint32_t threads = 1;
  call(torch_get_num_threads(&threads), "get_num_threads");
  return static_cast<int32_t>(threads);
}

inline void on_torch_threads(int64_t begin, int64_t end, void (*fn)(int64_t, int64_t, void*), void* ctx) {
  call(torch_parallel_for(begin, end, 1, fn, ctx), "parallel_for");
}

inline const Driver& cpu_driver() {
  static const Driver driver{"cpu", aoti_torch_device_type_cpu(), torch_threads, on_torch_threads, nullptr, nullptr, nullptr,
                             nullptr};
  return driver;
}

// Memory that lives as long as a call, aligned to 64 bytes.
class Workspace {
 public:
  Workspace(Device device, int64_t bytes) {
    if (bytes <= 0) return;
    const int64_t floats = (bytes + 64 + 3) / 4;
    memory_ = Tensor::empty(device, 1, &floats, Dtype::f32, "the kernel's working memory");
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = reinterpret_cast<void*>((address + 63) & ~uintptr_t{63});
  }
  void* data() const { return data_; }

 private:
  Tensor memory_;
  void* data_ = nullptr;
};

// The launches of a variant's row, given what its rendered kernel exports (the end of params.h).
template <auto kWorkspaceBytes, auto kKernel, typename Params>
void run_on_cpu(const Call& call, Params& p) {
  const Pool pool{call.driver.parallel_for, call.driver.threads()};
  p.pool = &pool;
  const Workspace workspace(call.device, kWorkspaceBytes(&p));
  p.workspace = workspace.data();
  kKernel(&p);
}

template <auto kKernel>
void count_on_cpu(const Call&, ForwardParams& p, TileCounts* counts) {
  kKernel(&p, counts);
}

}  // namespace
}  // namespace fagen::host
