// The machine, as all that the host unit asks of it.
#pragma once
#include <cstdint>

namespace fagen::host {
namespace {

// One plain table, filled by the file of a target (cpu.h), which the module's binding hands to every op. What a target
// with a device needs to launch (the stream, launches, tensor maps, function attributes) are more functions of this
// table, so that an emulator can put its own in their place; only that target's file calls them.
struct Driver {
  const char* device;   // where tensors must be, as torch calls it
  int32_t device_type;  // the same, as torch's number
  int32_t (*threads)();
  // Calls fn(begin, end, ctx) on parts that cover [begin, end), on those threads.
  void (*parallel_for)(int64_t begin, int64_t end, void (*fn)(int64_t, int64_t, void*), void* ctx);
};

}  // namespace
}  // namespace fagen::host
