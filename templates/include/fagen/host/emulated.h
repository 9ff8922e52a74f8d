// Kernels for a device, run on CPU tensors by an emulator in this process (fagen.emulate.driver), if one is there.
#pragma once
#include <fagen/host/launch.h>

#include <atomic>

namespace fagen::host {
namespace {

// An emulator, of which fagen/emulate/driver.py has the fields in this order. What is not 0 failed, and `message` (of so
// many bytes, the last of them 0) says why.
struct Emulator {
  // Runs a launch to its end.
  int32_t (*launch)(const Launch* request, char* message, int64_t room);
  // cuTensorMapEncodeTiled, its enumerations as numbers.
  int32_t (*encode_tiled)(void* map, uint32_t dtype, uint32_t rank, const void* address, const uint64_t* sizes,
                          const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                          uint32_t interleave, uint32_t swizzle, uint32_t l2_promotion, uint32_t oob_fill, char* message,
                          uint64_t room);
};

inline std::atomic<const Emulator*> emulator{nullptr};

inline void launch_emulated(const Unit&, const Launch& request, int32_t) {
  char message[1 << 14] = "";
  if (emulator.load()->launch(&request, message, sizeof(message)) != 0) {
    throw std::runtime_error(std::string("fagen: emulated launch: ") + message);
  }
}

// Few, so that a block of threads has more than one block of rows.
inline int32_t multiprocessors_emulated(int32_t) { return 3; }

inline void encode_tiled_emulated(TensorMap& map, uint32_t dtype, uint32_t rank, const void* address,
                                  const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                                  const uint32_t* element_strides, uint32_t swizzle, uint32_t l2_promotion,
                                  uint32_t oob_fill) {
  char message[256] = "";
  if (emulator.load()->encode_tiled(&map, dtype, rank, address, sizes, strides, box, element_strides, 0, swizzle,
                                    l2_promotion, oob_fill, message, sizeof(message)) != 0) {
    throw std::runtime_error(std::string("fagen: emulated tensor map: ") + message);
  }
}

// `module` and `target` are for the words of the refusal.
inline const Driver& emulated_driver(const char* module, const char* target) {
  static const Driver driver{"cpu",   aoti_torch_device_type_cpu(), nullptr,
                             nullptr, launch_emulated,              multiprocessors_emulated,
                             encode_tiled_emulated};
  if (emulator.load() == nullptr) {
    throw std::invalid_argument(std::string("fagen module ") + module + " is built for CUDA cards (" + target +
                                "), and these tensors are on the CPU: move them to a card, or run its kernels in the "
                                "emulator: with fagen.emulate.driver.use(module): ...");
  }
  return driver;
}

}  // namespace
}  // namespace fagen::host
