// Launches twice on device 1 as a module's host code does, once another kernel, and once on device 0. With BATCH, makes
// the launch of a call of so many batches of 5 heads instead; with CLUSTER, one of clusters, and a tensor map; with COUNTERS,
// asks for those of streams and captures. Prints what is thrown.
#include <fagen/host/cuda.h>

#include <cstdio>

#ifdef CUDA_HEADER
#include <cuda.h>

#include <cstddef>

// What fagen/host/cuda.h says by itself is what NVIDIA's header says.
static_assert(sizeof(CUlaunchConfig) == sizeof(fagen::host::CudaLaunchConfig));
static_assert(offsetof(CUlaunchConfig, gridDimX) == offsetof(fagen::host::CudaLaunchConfig, grid));
static_assert(offsetof(CUlaunchConfig, blockDimX) == offsetof(fagen::host::CudaLaunchConfig, block));
static_assert(offsetof(CUlaunchConfig, sharedMemBytes) == offsetof(fagen::host::CudaLaunchConfig, shared_bytes));
static_assert(offsetof(CUlaunchConfig, hStream) == offsetof(fagen::host::CudaLaunchConfig, stream));
static_assert(offsetof(CUlaunchConfig, numAttrs) == offsetof(fagen::host::CudaLaunchConfig, attribute_count));
static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == fagen::host::kMaxDynamicSharedBytes);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == fagen::host::kComputeMajor);
static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == fagen::host::kComputeMinor);
static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == fagen::host::kMultiprocessors);
static_assert(CU_TENSOR_MAP_DATA_TYPE_FLOAT16 == fagen::host::kFloat16Map);
static_assert(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 == fagen::host::kBfloat16Map);
static_assert(CU_TENSOR_MAP_SWIZZLE_128B == fagen::host::kSwizzle128);
static_assert(CU_TENSOR_MAP_L2_PROMOTION_L2_256B == fagen::host::kPromote256);
static_assert(CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE == fagen::host::kZerosOutside);
using LibraryLoad = CUresult (*)(CUlibrary*, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned);
static_assert(std::is_same_v<decltype(&cuLibraryLoadData), LibraryLoad>);
static_assert(std::is_same_v<decltype(&cuLibraryGetKernel), CUresult (*)(CUkernel*, CUlibrary, const char*)>);
using SetAttribute = CUresult (*)(CUfunction_attribute, int, CUkernel, CUdevice);
static_assert(std::is_same_v<decltype(&cuKernelSetAttribute), SetAttribute>);
using LaunchEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);
static_assert(std::is_same_v<decltype(&cuLaunchKernelEx), LaunchEx>);
static_assert(sizeof(CUlaunchAttribute) == sizeof(fagen::host::CudaLaunchAttribute));
static_assert(offsetof(CUlaunchAttribute, value) == offsetof(fagen::host::CudaLaunchAttribute, value));
static_assert(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == fagen::host::kClusterDimension);
static_assert(sizeof(CUtensorMap) == sizeof(fagen::host::TensorMap));
static_assert(alignof(CUtensorMap) <= alignof(fagen::host::TensorMap));
using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static_assert(std::is_same_v<decltype(&cuTensorMapEncodeTiled), EncodeTiled>);
static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == fagen::host::kCaptureRelaxed);
static_assert(std::is_same_v<decltype(&cuThreadExchangeStreamCaptureMode), CUresult (*)(CUstreamCaptureMode*)>);
static_assert(sizeof(CUstreamCaptureMode) == sizeof(int));
static_assert(std::is_same_v<decltype(&cuDevicePrimaryCtxRetain), CUresult (*)(CUcontext*, CUdevice)>);
static_assert(CU_STREAM_NON_BLOCKING == fagen::host::kNonBlocking && CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t) && sizeof(CUstreamCaptureStatus) == sizeof(int));
static_assert(std::is_same_v<decltype(&cuStreamGetId), CUresult (*)(CUstream, unsigned long long*)>);
static_assert(std::is_same_v<decltype(&cuMemsetD32Async), CUresult (*)(CUdeviceptr, unsigned, size_t, CUstream)>);
static_assert(std::is_same_v<decltype(&cuMemAlloc), CUresult (*)(CUdeviceptr*, size_t)>);
static_assert(std::is_same_v<decltype(&cuStreamCreate), CUresult (*)(CUstream*, unsigned)>);
#define NAME_OF(name) #name
#define TEXT_OF(name) NAME_OF(name)
static_assert(std::string_view(TEXT_OF(cuCtxPushCurrent)) == "cuCtxPushCurrent_v2");
static_assert(std::string_view(TEXT_OF(cuCtxPopCurrent)) == "cuCtxPopCurrent_v2");
static_assert(std::string_view(TEXT_OF(cuStreamDestroy)) == "cuStreamDestroy_v2");
static_assert(std::string_view(TEXT_OF(cuMemAlloc)) == "cuMemAlloc_v2");
#endif

using namespace fagen::host;

int main(int argc, char** argv) {
  if (argc > 1) dlopen(argv[1], RTLD_NOW);  // torch's library, as torch does
  const char fatbin[] = "the fatbin";
  const Image image{{"a_forward", fatbin, 80, std::getenv("EXACT") != nullptr},
                    "fagen_a_forward", "fagen_a_tile_counts", 128, 64, 50000};
  int first = 7, second = 8;
  void* params[] = {&first, &second};
  const int64_t sizes[] = {4, 4};
  const Launch forward{"a_forward", image.kernel, {12, 1, 1}, {64, 1, 1}, 50000, 2, 0, params, sizes, nullptr};
  const Launch counts{"a_forward", image.counts, {12, 1, 1}, {128, 1, 1}, 0, 2, 0, params, sizes, nullptr};
  try {
    if (const char* batch = std::getenv("BATCH")) {
      VariantRow variant{};
      variant.name = "a";
      variant.forward_image = &image;
      const Call call{cuda_driver(), variant, {cuda_driver().device_type, 1}};
      const fagen::Shape shape{std::atoll(batch), 5, 5, 129, 1};
      launch(call, image, forward_kernel(image), tiles_of(call, shape), params, sizes, 2, Buffers());
      return 0;
    }
    if (std::getenv("CLUSTER") != nullptr) {
      Launch request = forward;
      request.cluster[1] = 2;
      cuda_driver().launch(image, request, 1);
      const uint64_t extents[] = {64, 100}, strides[] = {128};
      const uint32_t box[] = {32, 16}, steps[] = {1, 2};
      TensorMap map{};
      cuda_driver().encode_tiled(map, 9, 2, reinterpret_cast<void*>(0x40), extents, strides, box, steps, 3, 2, 1);
      std::printf("map of %x to %x\n", map.bytes[0], map.bytes[127]);
      return 0;
    }
    if (std::getenv("COUNTERS") != nullptr) {
      const auto ask = [](const char* stream, const char* capture, int device) {
        setenv("STREAM", stream, 1);
        capture == nullptr ? unsetenv("CAPTURE") : setenv("CAPTURE", capture, 1);
        std::printf("counter %p\n", static_cast<void*>(cuda_driver().counter(device)));
      };
      ask("57", nullptr, 1), ask("58", nullptr, 1), ask("57", nullptr, 1);
      for (const char* stream : {"57", "58", "57", "57"}) ask(stream, "1", 1);
      ask("57", nullptr, 0);
      for (int stream = 0x100; stream < 0x100 + 4096; ++stream) ask(std::to_string(stream).c_str(), nullptr, 1);
      ask("57", nullptr, 1);
      return 0;
    }
    for (const Launch* request : {&forward, &forward, &counts}) cuda_driver().launch(image, *request, 1);
    cuda_driver().launch(image, forward, 0);
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
}
