// CUDA cards: fatbins loaded and kernels launched by the driver, on torch's current stream. Both libraries are looked up
// when a kernel is first launched, so that a module loads where there is neither.
#pragma once
#include <dlfcn.h>
#include <fagen/host/launch.h>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

namespace fagen::host {
namespace {

// What cuda.h and torch's headers say of these functions; the types that it names are opaque here.
struct CudaLaunchAttribute {
  int id, unused;
  uint64_t value[8];
};
struct CudaLaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  CudaLaunchAttribute* attributes;
  unsigned attribute_count;
};
constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kComputeMajor = 75, kComputeMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR
constexpr int kMultiprocessors = 16;                   // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
constexpr int kCaptureRelaxed = 2;                     // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kNonBlocking = 1;                        // CU_STREAM_NON_BLOCKING
constexpr int kClusterDimension = 4;                   // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
constexpr int kProgrammaticSerialization = 6;          // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

struct CudaFunctions {
  int (*init)(unsigned);
  int (*device_get)(int* device, int ordinal);
  int (*device_get_attribute)(int* value, int attribute, int device);
  int (*device_get_name)(char* name, int room, int device);
  int (*primary_context_retain)(void** context, int device);
  int (*context_push)(void* context);
  int (*context_pop)(void** context);
  int (*exchange_capture_mode)(int* mode);
  int (*library_load)(void** library, const void* code, void*, void*, unsigned, void*, void*, unsigned);
  int (*library_get_kernel)(void** kernel, void* library, const char* name);
  int (*kernel_set_attribute)(int attribute, int value, void* kernel, int device);
  int (*launch)(const CudaLaunchConfig* config, void* kernel, void* const* params, void** extra);
  int (*encode_tiled)(void* map, int dtype, uint32_t rank, void* address, const uint64_t* sizes,
                      const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, int interleave,
                      int swizzle, int l2_promotion, int oob_fill);
  int (*stream_is_capturing)(void* stream, int* status);
  int (*stream_id)(void* stream, uint64_t* id);
  int (*stream_create)(void** stream, unsigned flags);
  int (*stream_synchronize)(void* stream);
  int (*stream_destroy)(void* stream);
  int (*memory_allocate)(uint64_t* address, size_t bytes);
  int (*memory_set)(uint64_t address, unsigned value, size_t words, void* stream);
  int (*get_error_name)(int error, const char** text);
  int (*get_error_string)(int error, const char** text);
  AOTITorchError (*current_stream)(int32_t device_index, void** stream);
};

inline void* found(void* library, const char* name, const char* advice) {
  void* function = library == nullptr ? nullptr : dlsym(library, name);
  if (function == nullptr) throw std::runtime_error(std::string("fagen: no ") + name + ": " + advice);
  return function;
}

inline const CudaFunctions& cuda() {
  static const CudaFunctions functions = [] {
    CudaFunctions f{};
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto fill = [driver](auto& pointer, const char* name) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(
          found(driver, name, driver == nullptr ? "libcuda.so.1 cannot be loaded: install NVIDIA's driver"
                                                : "libcuda.so.1 is older than CUDA 12: update NVIDIA's driver"));
    };
    fill(f.init, "cuInit");
    fill(f.device_get, "cuDeviceGet");
    fill(f.device_get_attribute, "cuDeviceGetAttribute");
    fill(f.device_get_name, "cuDeviceGetName");
    fill(f.primary_context_retain, "cuDevicePrimaryCtxRetain");
    fill(f.context_push, "cuCtxPushCurrent_v2");
    fill(f.context_pop, "cuCtxPopCurrent_v2");
    fill(f.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    fill(f.library_load, "cuLibraryLoadData");
    fill(f.library_get_kernel, "cuLibraryGetKernel");
    fill(f.kernel_set_attribute, "cuKernelSetAttribute");
    fill(f.launch, "cuLaunchKernelEx");
    fill(f.encode_tiled, "cuTensorMapEncodeTiled");
    fill(f.stream_is_capturing, "cuStreamIsCapturing");
    fill(f.stream_id, "cuStreamGetId");
    fill(f.stream_create, "cuStreamCreate");
    fill(f.stream_synchronize, "cuStreamSynchronize");
    fill(f.stream_destroy, "cuStreamDestroy_v2");
    fill(f.memory_allocate, "cuMemAlloc_v2");
    fill(f.memory_set, "cuMemsetD32Async");
    fill(f.get_error_name, "cuGetErrorName");
    fill(f.get_error_string, "cuGetErrorString");
    void* torch = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
    f.current_stream = reinterpret_cast<decltype(f.current_stream)>(
        found(torch, "aoti_torch_get_current_cuda_stream", "this process has a torch without CUDA"));
    return f;
  }();
  return functions;
}

[[noreturn]] inline void cuda_failed(int error, const std::string& doing) {
  const char *name = nullptr, *text = nullptr;
  cuda().get_error_name(error, &name);
  cuda().get_error_string(error, &text);
  throw std::runtime_error("fagen: " + (name ? std::string(name) : "CUDA error " + std::to_string(error)) +
                           (text ? std::string(" (") + text + ")" : std::string()) + ", " + doing);
}
inline void require(int error, const std::string& doing) {
  if (error != 0) cuda_failed(error, doing);
}

// While this lives, its thread may do what the capture of a CUDA graph forbids: opening a device and loading code, which
// are no part of the graph. So a kernel's first launch may be one that is captured.
class BesideCapture {
 public:
  BesideCapture() { require(cuda().exchange_capture_mode(&mode_), "making room for code beside a capture"); }
  ~BesideCapture() { cuda().exchange_capture_mode(&mode_); }
  BesideCapture(const BesideCapture&) = delete;
  BesideCapture& operator=(const BesideCapture&) = delete;

 private:
  int mode_ = kCaptureRelaxed;  // and then that of before
};

// A device of torch's number, its primary context current for as long as this lives.
class CudaDevice {
 public:
  explicit CudaDevice(int32_t index) : handle_(known(index)) {
    const int error = cuda().context_push(handle_.context);
    if (error != 0) cuda_failed(error, "making device " + std::to_string(index) + " current");
  }
  ~CudaDevice() {
    void* popped = nullptr;
    cuda().context_pop(&popped);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  int number() const { return handle_.device; }
  int capability() const { return handle_.capability; }
  static int multiprocessors(int32_t index) { return known(index).multiprocessors; }

 private:
  struct Handle {
    int device, capability, multiprocessors;
    void* context;
  };

  static const Handle& known(int32_t index) {
    static std::mutex mutex;
    static std::map<int32_t, Handle> handles;
    const std::lock_guard<std::mutex> lock(mutex);
    const auto place = handles.find(index);
    if (place != handles.end()) return place->second;
    const std::string which = "device " + std::to_string(index);
    Handle made{};
    int major = 0, minor = 0;
    require(cuda().init(0), "initialising the driver");
    const BesideCapture beside;
    require(cuda().device_get(&made.device, index), "looking for " + which);
    require(cuda().device_get_attribute(&major, kComputeMajor, made.device), "asking " + which + " what it is");
    require(cuda().device_get_attribute(&minor, kComputeMinor, made.device), "asking " + which + " what it is");
    require(cuda().device_get_attribute(&made.multiprocessors, kMultiprocessors, made.device),
            "asking " + which + " what it is");
    require(cuda().primary_context_retain(&made.context, made.device), "opening " + which);  // kept for good
    made.capability = 10 * major + minor;
    return handles.emplace(index, made).first->second;
  }

  const Handle handle_;
};

inline std::string target_of(const Unit& image) {
  return "sm_" + std::to_string(image.number) + (image.exact ? "a" : "");
}

// The kernel of an image, loaded, and ready for launches with so much shared memory on a device.
inline void* loaded_kernel(const Unit& image, const char* name, uint32_t shared_bytes, const CudaDevice& device) {
  static std::mutex mutex;
  static std::map<const void*, void*> libraries;
  static std::map<std::pair<const char*, int>, void*> kernels;  // by name and device
  const std::lock_guard<std::mutex> lock(mutex);
  void*& kernel = kernels[{name, device.number()}];
  if (kernel != nullptr) return kernel;
  if (device.capability() < image.number || (image.exact && device.capability() != image.number)) {
    char card[256] = "this card";
    cuda().device_get_name(card, sizeof(card), device.number());
    throw std::runtime_error(std::string("fagen: ") + image.unit + " is built for " + target_of(image) + ", and " + card +
                             " is sm_" + std::to_string(device.capability()) + ": build the spec for that target");
  }
  const BesideCapture beside;
  void*& library = libraries[image.fatbin];
  if (library == nullptr) {
    require(cuda().library_load(&library, image.fatbin, nullptr, nullptr, 0, nullptr, nullptr, 0),
            std::string("loading the machine code of ") + image.unit);
  }
  void* made = nullptr;
  require(cuda().library_get_kernel(&made, library, name), std::string("looking for the kernel ") + name);
  if (shared_bytes != 0) {
    std::string doing = "setting aside " + std::to_string(shared_bytes) + " bytes of shared memory for " + name;
    if (device.capability() != image.number) {  // a newer card may have less of it
      doing += ", which is built for " + target_of(image) + ", on a card that is sm_" +
               std::to_string(device.capability()) + ": build the spec for that target";
    }
    require(cuda().kernel_set_attribute(kMaxDynamicSharedBytes, static_cast<int>(shared_bytes), made, device.number()),
            doing);
  }
  return kernel = made;
}

inline void launch_on_cuda(const Unit& image, const Launch& request, int32_t device_index) {
  const CudaDevice device(device_index);
  void* kernel = loaded_kernel(image, request.kernel, request.shared_bytes, device);
  CudaLaunchConfig config{{request.grid[0], request.grid[1], request.grid[2]},
                          {request.block[0], request.block[1], request.block[2]},
                          request.shared_bytes,
                          nullptr,
                          nullptr,
                          0};
  CudaLaunchAttribute attributes[2] = {};
  config.attributes = attributes;
  if (request.cluster[0] * request.cluster[1] * request.cluster[2] != 1) {
    CudaLaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = kClusterDimension;
    std::memcpy(attribute.value, request.cluster, sizeof(request.cluster));
  }
  if (request.early != 0) {
    CudaLaunchAttribute& attribute = attributes[config.attribute_count++];
    attribute.id = kProgrammaticSerialization;
    std::memcpy(attribute.value, &request.early, sizeof(request.early));
  }
  call(cuda().current_stream(device_index, &config.stream), "get_current_cuda_stream");
  const int error = cuda().launch(&config, kernel, request.params, nullptr);
  if (error != 0) {
    cuda_failed(error, std::string("launching ") + request.kernel + " on " + std::to_string(request.grid[0]) +
                           " blocks of " + std::to_string(request.block[0]) + " threads with " +
                           std::to_string(request.shared_bytes) + " bytes of shared memory");
  }
}

inline int32_t multiprocessors_of_cuda(int32_t device_index) { return CudaDevice::multiprocessors(device_index); }

// The counters of a device, which its kernels leave at 0, for as long as the process lives. A stream's kernels run one after
// the other and share one, known by a number that is never given twice. A launch that is captured has one to itself: branches
// of a graph run beside each other, its replays do not, and a stream that captures may not be asked for its number.
class Counters {
 public:
  // Of the next launch on a stream; nullptr where the stream's state forbids a launch, too.
  uint32_t* of(void* stream) {
    int capture = 0;
    uint64_t id = 0;
    if (cuda().stream_is_capturing(stream, &capture) != 0) return nullptr;
    if (capture == 0 && cuda().stream_id(stream, &id) != 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (capture != 0) return take();
    const auto [known, missing] = of_streams_.try_emplace(id, nullptr);
    if (missing || known->second == nullptr) known->second = take();
    return known->second;
  }

 private:
  static constexpr size_t kAtOnce = 4096;

  uint32_t* take() {
    if (left_ == 0) allocate();
    return next_ + --left_;
  }

  void allocate() {
    const BesideCapture beside;
    uint64_t made = 0;
    void* stream = nullptr;
    require(cuda().memory_allocate(&made, kAtOnce * sizeof(uint32_t)), "allocating the counters of drawn work");
    require(cuda().stream_create(&stream, kNonBlocking), "making a stream");
    require(cuda().memory_set(made, 0, kAtOnce, stream), "clearing the counters of drawn work");
    require(cuda().stream_synchronize(stream), "clearing the counters of drawn work");
    require(cuda().stream_destroy(stream), "giving a stream back");
    next_ = reinterpret_cast<uint32_t*>(made), left_ = kAtOnce;
  }

  std::mutex mutex_;
  std::map<uint64_t, uint32_t*> of_streams_;
  uint32_t* next_ = nullptr;
  size_t left_ = 0;
};

inline uint32_t* counter_on_cuda(int32_t device_index) {
  static std::mutex mutex;
  static std::map<int32_t, Counters> all;
  const CudaDevice device(device_index);
  void* stream = nullptr;
  call(cuda().current_stream(device_index, &stream), "get_current_cuda_stream");
  std::unique_lock<std::mutex> lock(mutex);
  Counters& counters = all[device_index];  // it stays where it is
  lock.unlock();
  return counters.of(stream);
}

inline void encode_tiled_on_cuda(TensorMap& map, uint32_t dtype, uint32_t rank, const void* address,
                                 const uint64_t* sizes, const uint64_t* strides, const uint32_t* box,
                                 const uint32_t* element_strides, uint32_t swizzle, uint32_t l2_promotion,
                                 uint32_t oob_fill) {
  require(cuda().encode_tiled(&map, static_cast<int>(dtype), rank, const_cast<void*>(address), sizes, strides, box,
                              element_strides, 0, static_cast<int>(swizzle), static_cast<int>(l2_promotion),
                              static_cast<int>(oob_fill)),
          "encoding a tensor map of rank " + std::to_string(rank));
}

inline const Driver& cuda_driver() {
  static const Driver driver{"cuda",  aoti_torch_device_type_cuda(), nullptr,
                             nullptr, launch_on_cuda,                multiprocessors_of_cuda,
                             counter_on_cuda, encode_tiled_on_cuda};
  return driver;
}

}  // namespace
}  // namespace fagen::host
