// Kernels for a device, run on CPU tensors by an emulator in this process (fagen.emulate.driver), if one is there.
#pragma once
#include <fagen/host/launch.h>

#include <atomic>

namespace fagen::host {
namespace {

// Runs a launch to its end. Not 0: it could not, and `message` (of so many bytes, the last of them 0) says why.
using Emulator = int32_t (*)(const Launch* request, char* message, int64_t room);

inline std::atomic<Emulator> emulator{nullptr};

inline void launch_emulated(const Image&, const Launch& request, int32_t) {
  char message[1 << 14] = "";
  if (emulator.load()(&request, message, sizeof(message)) != 0) {
    throw std::runtime_error(std::string("fagen: emulated launch: ") + message);
  }
}

// `module` and `target` are for the words of the refusal.
inline const Driver& emulated_driver(const char* module, const char* target) {
  static const Driver driver{"cpu", aoti_torch_device_type_cpu(), nullptr, nullptr, launch_emulated};
  if (emulator.load() == nullptr) {
    throw std::invalid_argument(std::string("fagen module ") + module + " is built for CUDA cards (" + target +
                                "), and these tensors are on the CPU: move them to a card, or run its kernels in the "
                                "emulator: with fagen.emulate.driver.use(module): ...");
  }
  return driver;
}

}  // namespace
}  // namespace fagen::host
