// The launches of a variant on a device: from its params to a grid, and to the memory that the kernel may touch.
#pragma once
#include <fagen/host/variant.h>

namespace fagen::host {
namespace {

inline int64_t bytes_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::boolean: return 1;
    case Dtype::bf16:
    case Dtype::f16: return 2;
    case Dtype::i64: return 8;
    default: return 4;
  }
}

// The memory of one launch.
class Buffers {
 public:
  void add(const char* name, const void* address, int64_t bytes, bool writable) {
    if (bytes > 0) held_[count_++] = {name, address, bytes, writable};
  }

  void add(const char* name, const TensorView& t, const int64_t (&sizes)[4], Dtype dtype, bool writable) {
    const int64_t strides[4] = {t.stride_b, t.stride_s, t.stride_h, t.stride_d};
    add(name, t.data, reach(4, sizes, strides) * bytes_of(dtype), writable);
  }

  void add(const char* name, const ArrayView& array, Dtype dtype) {
    add(name, array.data, reach(kMaxRank, array.size, array.stride) * bytes_of(dtype), false);
  }

  const Buffer* data() const { return held_; }
  int32_t count() const { return count_; }

 private:
  // Elements from the first to the last.
  static int64_t reach(int rank, const int64_t* sizes, const int64_t* strides) {
    int64_t last = 0;
    for (int d = 0; d < rank; ++d) {
      if (sizes[d] == 0) return 0;
      last += (sizes[d] - 1) * strides[d];
    }
    return last + 1;
  }

  Buffer held_[kMaxParams + 8];
  int32_t count_ = 0;
};

inline void add_params(Buffers& buffers, const VariantRow& variant, const ForwardParams& p) {
  for (int32_t i = 0; i < variant.param_count; ++i) {
    buffers.add(variant.params[i].name, p.params[i], variant.params[i].dtype);
  }
}

// The tiles of query rows of all heads: a block of threads each, unless those are fewer and go from one to the next.
inline uint32_t tiles_of(const Call& call, const Shape& shape) {
  const Image& image = *call.variant.forward_image;
  const int64_t tiles = (shape.q_len + image.tile_q - 1) / image.tile_q;
  int64_t blocks = 0;
  if (__builtin_mul_overflow(tiles * shape.heads, shape.batch, &blocks) || blocks > INT32_MAX) {
    throw std::invalid_argument(std::string(call.variant.name) + ": batch, heads and query length make more than 2^31 - 1" +
                                " tiles of " + std::to_string(image.tile_q) + " queries");
  }
  return static_cast<uint32_t>(blocks);
}

inline void launch(const Call& call, const char* kernel, uint32_t blocks, uint32_t shared_bytes, void* const* params,
                   const int64_t* param_bytes, int32_t param_count, const Buffers& buffers, bool early = false) {
  if (blocks == 0) return;
  const Image& image = *call.variant.forward_image;
  const Launch request{image.unit,   kernel,      {blocks, 1, 1},  {image.threads, 1, 1},
                       shared_bytes, param_count, buffers.count(), params,
                       param_bytes,  buffers.data(), {1, 1, 1},    early};
  call.driver.launch(image, request, call.device.index);
}

inline Buffers buffers_of(const Call& call, const ForwardParams& p) {
  const VariantRow& variant = call.variant;
  const Shape& shape = p.shape;
  Buffers buffers;
  buffers.add("q", p.q, {shape.batch, shape.q_len, shape.heads, variant.head_dim}, variant.dtype, false);
  buffers.add("k", p.k, {shape.batch, shape.kv_len, shape.kv_heads, variant.head_dim}, variant.dtype, false);
  buffers.add("v", p.v, {shape.batch, shape.kv_len, shape.kv_heads, variant.value_dim}, variant.dtype, false);
  buffers.add("o", p.o, {shape.batch, shape.q_len, shape.heads, variant.value_dim}, variant.dtype, true);
  buffers.add("lse", p.lse, shape.batch * shape.heads * shape.q_len * 4, true);
  if (p.sink != nullptr) buffers.add("sink", p.sink, shape.heads * 4, false);
  add_params(buffers, variant, p);
  return buffers;
}

// The launches of a variant's row, by what its kernel takes: pointers alone,
inline void run_on_device(const Call& call, ForwardParams& p) {
  const Image& image = *call.variant.forward_image;
  void* params[] = {&p};
  const int64_t sizes[] = {sizeof(p)};
  launch(call, image.kernel, tiles_of(call, p.shape), image.shared_bytes, params, sizes, 1, buffers_of(call, p));
}

// As CUDA's driver counts them.
constexpr uint32_t kFloat16Map = 6, kBfloat16Map = 9, kSwizzle128 = 3, kPromote256 = 3, kZerosOutside = 0;

// A tensor's map: boxes of 64 elements, or 128 bytes, of `rows` rows of one head, swizzled.
inline void encode(const Call& call, TensorMap& map, const TensorView& t, int64_t dim, int64_t length, int64_t heads,
                   int64_t batch, uint32_t rows, const void* spare) {
  // Whole slabs of 64 elements are an axis of their own: a box has all of them. (cuda/slabs.h asks for them.)
  const bool whole = dim % 64 == 0;
  const uint32_t slabs = whole ? static_cast<uint32_t>(dim / 64) : 1;
  const int64_t sizes[5] = {whole ? 64 : dim, length, slabs, heads, batch}, steps[4] = {t.stride_s, 64, t.stride_h, t.stride_b};
  const uint32_t boxes[5] = {64, rows, slabs, 1, 1}, ones[5] = {1, 1, 1, 1, 1};
  uint64_t extents[5], strides[4];
  uint32_t box[5], rank = 0;
  for (int d = 0; d < 5; ++d) {
    if (d == 2 && !whole) continue;
    // A map must have something in it: what is not there is not asked for.
    extents[rank] = static_cast<uint64_t>(sizes[d] > 0 ? sizes[d] : 1), box[rank] = boxes[d];
    if (d > 0) strides[rank - 1] = sizes[d] > 1 ? static_cast<uint64_t>(steps[d - 1]) * 2 : 16;
    ++rank;
  }
  call.driver.encode_tiled(map, call.variant.dtype == Dtype::bf16 ? kBfloat16Map : kFloat16Map, rank,
                           length > 0 ? t.data : spare, extents, strides, box, ones, kSwizzle128, kPromote256, kZerosOutside);
}

// Has the tiles of a mask found; what is returned holds them until the kernel that reads them is launched, and for as long
// as the stream needs it.
inline Tensor find_tiles(const Call& call, ForwardParams& p) {
  const Image& image = *call.variant.forward_image;
  if (image.find == nullptr) return {};
  constexpr int kWarps = 4;  // of a block of threads, each for a word
  const Shape& shape = p.shape;
  const int64_t blocks = (shape.q_len + image.tile_q - 1) / image.tile_q;
  const int64_t tiles = shape.kv_len > 0 ? (shape.kv_len + image.box_kv - 1) / image.box_kv : 1;
  const int64_t words = shape.batch * (image.by_head ? shape.heads : 1) * blocks * ((tiles + 31) / 32);
  const int64_t size = (words * image.word_bytes + 3) / 4;
  Tensor found = Tensor::empty(call.device, 1, &size, Dtype::i32, "the tiles of a mask");
  if (words > INT32_MAX) {
    throw std::invalid_argument(std::string(call.variant.name) + ": batch, heads and lengths make too many tiles");
  }
  p.workspace = found.data();
  Buffers buffers;
  buffers.add("tiles", p.workspace, size * 4, true);
  add_params(buffers, call.variant, p);
  void* params[] = {&p};
  const int64_t sizes[] = {sizeof(p)};
  const Launch request{image.unit, image.find, {static_cast<uint32_t>((words + kWarps - 1) / kWarps), 1, 1},
                       {32 * kWarps, 1, 1}, 0, 1, buffers.count(), params, sizes, buffers.data()};
  call.driver.launch(image, request, call.device.index);
  return found;
}

// or maps of tensors too; as many blocks of threads as there are multiprocessors.
inline void run_with_maps(const Call& call, ForwardParams& p) {
  const VariantRow& variant = call.variant;
  const Image& image = *variant.forward_image;
  const Shape& shape = p.shape;
  const uint32_t tiles = tiles_of(call, shape);
  const auto most = static_cast<uint32_t>(call.driver.multiprocessors(call.device.index));
  if (image.draws && tiles > most) p.drawn = call.driver.counter(call.device.index);
  const Tensor found = find_tiles(call, p);
  TensorMap q, k, v;
  encode(call, q, p.q, variant.head_dim, shape.q_len, shape.heads, shape.batch, image.box_q, nullptr);
  encode(call, k, p.k, variant.head_dim, shape.kv_len, shape.kv_heads, shape.batch, image.box_kv, p.q.data);
  encode(call, v, p.v, variant.value_dim, shape.kv_len, shape.kv_heads, shape.batch, image.box_kv, p.q.data);
  void* params[] = {&p, &q, &k, &v};
  const int64_t sizes[] = {sizeof(p), sizeof(q), sizeof(k), sizeof(v)};
  Buffers buffers = buffers_of(call, p);
  buffers.add("drawn", p.drawn, p.drawn == nullptr ? 0 : 4, true);
  if (found.defined()) buffers.add("tiles", p.workspace, found.numel() * 4, true);
  launch(call, image.kernel, tiles < most ? tiles : most, image.shared_bytes, params, sizes, 4, buffers, image.find != nullptr);
}

inline void count_on_device(const Call& call, ForwardParams& p, TileCounts* counts) {
  Buffers buffers;
  buffers.add("counts", counts, sizeof(*counts), true);
  add_params(buffers, call.variant, p);
  void* params[] = {&p, &counts};
  const int64_t sizes[] = {sizeof(p), sizeof(counts)};
  launch(call, call.variant.forward_image->counts, tiles_of(call, p.shape), 0, params, sizes, 2, buffers);
}

}  // namespace
}  // namespace fagen::host
