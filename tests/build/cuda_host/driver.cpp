// Stands in for libcuda.so.1 and, compiled with TORCH, for libtorch_cuda.so: says on stdout what it is asked. FAKE_CARD
// is the compute capability of its only card, FAIL the function that returns an error, STREAM torch's stream, which
// captures if there is a CAPTURE. OLD leaves out what CUDA 12 added.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#ifdef TORCH
extern "C" int aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream) {
  std::printf("stream of %d\n", device_index);
  const char* current = std::getenv("STREAM");
  *stream = reinterpret_cast<void*>(current == nullptr ? 0x57 : std::strtoul(current, nullptr, 16));
  return 0;
}
#else
namespace {

int answer(const char* function) {
  const char* failing = std::getenv("FAIL");
  return failing != nullptr && std::strcmp(failing, function) == 0 ? 1 : 0;
}

struct Attribute {
  int id, unused;
  unsigned value[16];
};
struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  Attribute* attributes;
  unsigned attribute_count;
};

}  // namespace

extern "C" {

int cuInit(unsigned) { return answer("cuInit"); }
int cuDeviceGetCount(int* count) { return *count = 2, answer("cuDeviceGetCount"); }
int cuDeviceGet(int* device, int ordinal) {
  *device = 40 + ordinal;
  return answer("cuDeviceGet");
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  const int capability = std::atoi(std::getenv("FAKE_CARD"));
  *value = attribute == 75 ? capability / 10 : attribute == 76 ? capability % 10 : -1;
  return answer("cuDeviceGetAttribute");
}
int cuDeviceGetName(char* name, int room, int) {
  std::snprintf(name, static_cast<size_t>(room), "Fake Card");
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  std::printf("retain context of %d\n", device);
  *context = reinterpret_cast<void*>(0xc0);
  return answer("cuDevicePrimaryCtxRetain");
}
int cuThreadExchangeStreamCaptureMode(int* mode) {
  static int current = 0;
  std::printf("capture mode %d after %d\n", *mode, current);
  const int before = current;
  current = *mode;
  *mode = before;
  return answer("cuThreadExchangeStreamCaptureMode");
}
int cuCtxPushCurrent_v2(void*) { return std::puts("push"), 0; }
int cuCtxPopCurrent_v2(void**) { return std::puts("pop"), 0; }
#ifndef OLD
int cuLibraryLoadData(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  std::printf("load %s\n", static_cast<const char*>(code));
  *library = reinterpret_cast<void*>(0x11b);
  return answer("cuLibraryLoadData");
}
#endif
int cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  std::printf("kernel %s of %p\n", name, library);
  *kernel = reinterpret_cast<void*>(0x3e);
  return answer("cuLibraryGetKernel");
}
int cuKernelSetAttribute(int attribute, int value, void*, int device) {
  std::printf("attribute %d = %d on %d\n", attribute, value, device);
  return answer("cuKernelSetAttribute");
}
int cuLaunchKernelEx(const Config* config, void* kernel, void** params, void** extra) {
  std::printf("launch %p: grid %u %u %u, block %u %u %u, shared %u, stream %p, attributes %u, extra %p, params %d %d\n",
              kernel, config->grid[0], config->grid[1], config->grid[2], config->block[0], config->block[1],
              config->block[2], config->shared_bytes, config->stream, config->attribute_count,
              static_cast<void*>(extra), *static_cast<int*>(params[0]), *static_cast<int*>(params[1]));
  for (unsigned n = 0; n < config->attribute_count; ++n) {
    const Attribute& each = config->attributes[n];
    std::printf("attribute %d of the launch: %u %u %u\n", each.id, each.value[0], each.value[1], each.value[2]);
  }
  return answer("cuLaunchKernelEx");
}
int cuTensorMapEncodeTiled(void* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
                           const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleave,
                           int swizzle, int promotion, int fill) {
  std::printf("encode %d of rank %u at %p: %lu by %lu, %lu apart, box %u %u, steps %u %u, %d %d %d %d\n", dtype, rank,
              address, sizes[0], sizes[1], strides[0], box[0], box[1], steps[0], steps[1], interleave, swizzle, promotion,
              fill);
  std::memset(map, 0x7e, 128);
  return answer("cuTensorMapEncodeTiled");
}
int cuStreamIsCapturing(void*, int* status) {
  *status = std::getenv("CAPTURE") != nullptr;
  return answer("cuStreamIsCapturing");
}
int cuStreamGetId(void* stream, uint64_t* id) {
  if (std::getenv("CAPTURE") != nullptr) std::printf("the capture is lost\n");  // as it was on a card
  *id = reinterpret_cast<uint64_t>(stream) + 1000;
  return answer("cuStreamGetId");
}
int cuStreamCreate(void** stream, unsigned flags) {
  std::printf("create stream with %u\n", flags);
  *stream = reinterpret_cast<void*>(0x5e);
  return answer("cuStreamCreate");
}
int cuStreamSynchronize(void* stream) { return std::printf("synchronize %p\n", stream), answer("cuStreamSynchronize"); }
int cuStreamDestroy_v2(void* stream) { return std::printf("destroy %p\n", stream), answer("cuStreamDestroy_v2"); }
int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  std::printf("allocate %zu\n", bytes);
  static uint64_t next = 0x1000;
  *address = next, next += 0x10000;
  return answer("cuMemAlloc_v2");
}
int cuMemsetD32Async(uint64_t address, unsigned value, size_t words, void* stream) {
  std::printf("set %zu words at %lx to %u on %p\n", words, address, value, stream);
  return answer("cuMemsetD32Async");
}
int cuGetErrorName(int, const char** text) { return *text = "CUDA_ERROR_INVALID_VALUE", 0; }
int cuGetErrorString(int, const char** text) { return *text = "invalid argument", 0; }

}  // extern "C"
#endif
