// Host code as a module has it, of two kernels in kernels/clusters.cu. Both return what is thrown, or "".
#include <fagen/host/emulated.h>

using namespace fagen::host;

namespace {

Launch request_of(const char* kernel, uint32_t blocks, uint32_t shared_bytes, void* const* params, const int64_t* sizes,
                  int32_t param_count, const Buffer* buffers, int32_t buffer_count) {
  return {"clusters", kernel, {blocks, 1, 1}, {32, 1, 1}, shared_bytes, param_count, buffer_count, params, sizes, buffers};
}

template <typename Do>
const char* thrown(Do run) {
  static std::string message;
  message.clear();
  try {
    run();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

}  // namespace

extern "C" {

void fagen_emulate(const Emulator* put) { emulator.store(put); }

// Sums tiles of 64 rows of x, 32 floats each, by clusters of the kernel's own size. Type 7 and swizzle 3: float32 and 128
// bytes.
const char* sum_tiles(const char* kernel, const float* x, float* out, int tiles, uint32_t columns) {
  return thrown([&] {
    const Driver& driver = emulated_driver("clusters", "sm_90a");
    const uint64_t sizes[] = {32, static_cast<uint64_t>(64 * tiles)}, strides[] = {128};
    const uint32_t box[] = {columns, 32}, steps[] = {1, 1};
    TensorMap map;
    driver.encode_tiled(map, 7, 2, x, sizes, strides, box, steps, 3, 0, 0);
    void* params[] = {&map, &out, &tiles};
    const int64_t param_bytes[] = {sizeof(map), sizeof(out), sizeof(tiles)};
    const Buffer buffers[] = {{"x", x, 64 * 32 * 4 * tiles, 0}, {"out", out, 2 * 32 * 4, 1}};
    driver.launch({}, request_of(kernel, 2, 8192, params, param_bytes, 3, buffers, 2), 0);
  });
}

// Blocks that write into their neighbours' memory, in clusters of the launch's size.
const char* ring(const char* kernel, int32_t* out, uint32_t blocks, uint32_t cluster) {
  return thrown([&] {
    void* params[] = {&out};
    const int64_t param_bytes[] = {sizeof(out)};
    const Buffer buffers[] = {{"out", out, blocks * 32 * 4, 1}};
    Launch request = request_of(kernel, blocks, 0, params, param_bytes, 1, buffers, 1);
    request.cluster[0] = cluster;
    emulated_driver("clusters", "sm_90a").launch({}, request, 0);
  });
}

}  // extern "C"
