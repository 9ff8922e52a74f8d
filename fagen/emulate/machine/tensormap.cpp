// cuTensorMapEncodeTiled, with the checks that the driver's documentation names. Source: CUDA Driver API, Tensor Map
// Object Management.
#include "tensormap.h"

#include <cstring>
#include <string>

namespace fagen::emulate {
namespace {

constexpr u32 kFloats = 0x1fc0;  // types 6 to 12
constexpr u32 kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};

std::string dimension(const char* what, u32 n) { return std::string(what) + "[" + std::to_string(n) + "]"; }

// What is wrong, or nothing.
std::string problem_of(u64 map, u32 type, u32 rank, u64 address, const u64* sizes, const u64* strides, const u32* box,
                       const u32* steps, u32 interleave, u32 swizzle, u32 promotion, u32 fill) {
  if (map % 64 != 0) return "tensorMap: an address that is no multiple of 64";
  if (type >= 16) return "tensorDataType: " + std::to_string(type) + " is none";
  if (type >= 13) return "tensorDataType: packed types are not built";
  if (interleave > 2 || swizzle > 6 || promotion > 3 || fill > 1) return "an enumeration's value that is none";
  if (interleave != 0) return "interleave: only CU_TENSOR_MAP_INTERLEAVE_NONE is built";
  if (swizzle > 3) return "swizzle: only those of 16-byte chunks are built";
  if (rank < 1 || rank > kMostRank) return "tensorRank: " + std::to_string(rank) + ", expected 1 to 5";
  if (address % 16 != 0) return "globalAddress: no multiple of 16";
  if (fill == 1 && !(kFloats >> type & 1)) return "oobFill: NaN needs a floating-point type";
  if (fill == 1) return "oobFill: NaN is not built";
  for (u32 n = 0; n < rank; ++n) {
    if (sizes[n] == 0 || sizes[n] > u64{1} << 32) return dimension("globalDim", n) + ": expected 1 to 2^32";
    if (box[n] == 0 || box[n] > 256) {
      return dimension("boxDim", n) + ": " + std::to_string(box[n]) + ", expected 1 to 256";
    }
    if (steps[n] == 0 || steps[n] > 8) return dimension("elementStrides", n) + ": expected 1 to 8";
  }
  for (u32 n = 0; n + 1 < rank; ++n) {
    if (strides[n] % 16 != 0) {
      return dimension("globalStrides", n) + ": " + std::to_string(strides[n]) + " bytes, no multiple of 16";
    }
    if (strides[n] >= u64{1} << 40) return dimension("globalStrides", n) + ": not below 2^40";
  }
  const u32 inner = box[0] * kBytes[type];
  if (inner % 16 != 0) {
    return "boxDim[0]: " + std::to_string(inner) + " bytes, no multiple of 16";
  }
  if (swizzle != 0 && inner > 16 * chunks_of(static_cast<u8>(swizzle))) {
    return "boxDim[0]: " + std::to_string(inner) + " bytes, more than the " +
           std::to_string(16 * chunks_of(static_cast<u8>(swizzle))) + " that the swizzle spans";
  }
  return "";
}

}  // namespace

u32 sum_of(const TensorMap& map) {
  u32 sum = 0x811c9dc5u;
  const u8* at = reinterpret_cast<const u8*>(&map);
  for (size_t n = 0; n < offsetof(TensorMap, sum); ++n) sum = (sum ^ at[n]) * 0x01000193u;
  return sum;
}

// Arguments as the driver's function has them, its enumerations as numbers. What is wrong is written into `message`, of
// `room` bytes; 0 if nothing is, else 1 (CUDA_ERROR_INVALID_VALUE).
extern "C" __attribute__((visibility("default"))) s32 fagen_encode_tiled(
    void* to, u32 type, u32 rank, u64 address, const u64* sizes, const u64* strides, const u32* box, const u32* steps,
    u32 interleave, u32 swizzle, u32 promotion, u32 fill, char* message, u64 room) {
  const std::string problem = problem_of(reinterpret_cast<u64>(to), type, rank, address, sizes, strides, box, steps,
                                         interleave, swizzle, promotion, fill);
  if (!problem.empty()) {
    if (room != 0) {
      const u64 length = problem.size() < room - 1 ? problem.size() : room - 1;
      std::memcpy(message, problem.data(), length);
      message[length] = '\0';
    }
    return 1;
  }
  TensorMap map;
  std::memset(&map, 0, sizeof(map));
  map.mark = kTensorMapMark;
  map.rank = static_cast<u8>(rank);
  map.type = static_cast<u8>(type);
  map.swizzle = static_cast<u8>(swizzle);
  map.element = static_cast<u8>(kBytes[type]);
  map.address = address;
  for (u32 n = 0; n < rank; ++n) {
    map.last[n] = static_cast<u32>(sizes[n] - 1);
    map.box[n] = static_cast<u16>(box[n]);
    map.steps[n] = static_cast<u16>(n == 0 ? 1 : steps[n]);  // the first is ignored
    if (n + 1 < rank) map.strides[n] = strides[n];
  }
  map.sum = sum_of(map);
  std::memset(to, 0, kTensorMapBytes);
  std::memcpy(to, &map, sizeof(map));
  return 0;
}

}  // namespace fagen::emulate
