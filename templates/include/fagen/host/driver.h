// What a launch needs of the machine. On the CPU: torch's own threads, and memory from torch's allocator. A target with
// a device brings its table of driver functions here; ops.h asks for nothing else.
#pragma once
#include <fagen/host/tensor.h>
#include <fagen/params.h>

namespace fagen::host {
namespace {

inline void torch_threads(int64_t begin, int64_t end, void (*fn)(int64_t, int64_t, void*), void* ctx) {
  call(torch_parallel_for(begin, end, 1, fn, ctx), "parallel_for");
}

inline Pool pool() {
  uint32_t threads = 1;
  call(torch_get_num_threads(&threads), "get_num_threads");
  return {torch_threads, static_cast<int32_t>(threads)};
}

// Memory that lives as long as a call, aligned to 64 bytes.
class Workspace {
 public:
  explicit Workspace(int64_t bytes) {
    if (bytes <= 0) return;
    const int64_t floats = (bytes + 64 + 3) / 4;
    memory_ = Tensor::empty(1, &floats, Dtype::f32);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = reinterpret_cast<void*>((address + 63) & ~uintptr_t{63});
  }
  void* data() const { return data_; }

 private:
  Tensor memory_;
  void* data_ = nullptr;
};

}  // namespace
}  // namespace fagen::host
