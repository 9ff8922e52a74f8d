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

// One block for each tile of query rows of each head.
inline void launch(const Call& call, const char* kernel, uint32_t threads, uint32_t shared_bytes, const Shape& shape,
                   void* const* params, const int64_t* param_bytes, int32_t param_count, const Buffers& buffers) {
  const Image& image = *call.variant.forward_image;
  const int64_t tiles = (shape.q_len + image.tile_q - 1) / image.tile_q;
  int64_t blocks = 0;
  if (__builtin_mul_overflow(tiles * shape.heads, shape.batch, &blocks) || blocks > INT32_MAX) {
    throw std::invalid_argument(std::string(call.variant.name) + ": batch, heads and query length make more than 2^31 - 1" +
                                " tiles of " + std::to_string(image.tile_q) + " queries");
  }
  if (blocks == 0) return;
  const Launch request{image.unit,   kernel,          {static_cast<uint32_t>(blocks), 1, 1}, {threads, 1, 1},
                       shared_bytes, param_count,     buffers.count(),                       params,
                       param_bytes,  buffers.data()};
  call.driver.launch(image, request, call.device.index);
}

// The launches of a variant's row.
inline void run_on_device(const Call& call, ForwardParams& p) {
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
  const Image& image = *variant.forward_image;
  void* params[] = {&p};
  const int64_t sizes[] = {sizeof(p)};
  launch(call, image.kernel, image.threads, image.shared_bytes, shape, params, sizes, 1, buffers);
}

inline void count_on_device(const Call& call, ForwardParams& p, TileCounts* counts) {
  Buffers buffers;
  buffers.add("counts", counts, sizeof(*counts), true);
  add_params(buffers, call.variant, p);
  void* params[] = {&p, &counts};
  const int64_t sizes[] = {sizeof(p), sizeof(counts)};
  const Image& image = *call.variant.forward_image;
  launch(call, image.counts, image.threads, 0, p.shape, params, sizes, 2, buffers);
}

}  // namespace
}  // namespace fagen::host
