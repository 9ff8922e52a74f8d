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

  void add(const char* name, const Tensor& made) {
    if (made.defined()) add(name, made.data(), made.numel() * static_cast<int64_t>(aoti_torch_dtype_element_size(made.dtype())), true);
  }

  void add(const char* name, const ArrayView& array, Dtype dtype, bool writable = false) {
    add(name, array.data, reach(kMaxRank, array.size, array.stride) * bytes_of(dtype), writable);
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

  Buffer held_[3 * kMaxParams + 16];
  int32_t count_ = 0;
};

template <class Params>
void add_params(Buffers& buffers, const VariantRow& variant, const Params& p) {
  for (int32_t i = 0; i < variant.param_count; ++i) {
    buffers.add(variant.params[i].name, p.params[i], variant.params[i].dtype);
  }
}

// The tiles of a length, of all heads.
inline uint32_t tiles_of(const Call& call, int64_t length, int32_t tile, int64_t heads, int64_t batch, const char* rows) {
  int64_t tiles = 0;
  if (__builtin_mul_overflow((length + tile - 1) / tile * heads, batch, &tiles) || tiles > INT32_MAX) {
    throw std::invalid_argument(std::string(call.variant.name) + ": batch, heads and length make more than 2^31 - 1" +
                                " tiles of " + std::to_string(tile) + " " + rows);
  }
  return static_cast<uint32_t>(tiles);
}

// The tiles of query rows of all heads: a block of threads each, unless those are fewer and go from one to the next.
inline uint32_t tiles_of(const Call& call, const Shape& shape) {
  return tiles_of(call, shape.q_len, call.variant.forward_image->tile_q, shape.heads, shape.batch, "queries");
}

inline void launch(const Call& call, const Unit& unit, const Kernel& kernel, uint32_t blocks, void* const* params,
                   const int64_t* param_bytes, int32_t param_count, const Buffers& buffers, bool early = false) {
  if (blocks == 0) return;
  const Launch request{unit.unit,           kernel.name, {blocks, 1, 1},  {kernel.threads, 1, 1},
                       kernel.shared_bytes, param_count, buffers.count(), params,
                       param_bytes,         buffers.data(), {1, 1, 1},    early};
  call.driver.launch(unit, request, call.device.index);
}

inline Kernel forward_kernel(const Image& image) { return {image.kernel, image.threads, image.shared_bytes}; }

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
  if (p.dropout.rng_state != nullptr) buffers.add("rng_state", p.dropout.rng_state, 16, false);
  add_params(buffers, variant, p);
  return buffers;
}

// The launches of a variant's row, by what its kernel takes: pointers alone,
inline void run_on_device(const Call& call, ForwardParams& p) {
  const Image& image = *call.variant.forward_image;
  void* params[] = {&p};
  const int64_t sizes[] = {sizeof(p)};
  launch(call, image, forward_kernel(image), tiles_of(call, p.shape), params, sizes, 1, buffers_of(call, p));
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

// Blocks of threads for so many words of `bytes`: a warp finds two of these, of one warpgroup's part of 8 tiles.
inline uint32_t find_blocks(const Call& call, int64_t words, int32_t bytes) {
  const int64_t warps = words * (bytes / 2);
  if (warps > INT32_MAX) {
    throw std::invalid_argument(std::string(call.variant.name) + ": batch, heads and lengths make too many tiles");
  }
  return static_cast<uint32_t>((warps + kFinders - 1) / kFinders);
}

// Has the tiles of a mask found; what is returned holds them until the kernel that reads them is launched, and for as long
// as the stream needs it.
inline Tensor find_tiles(const Call& call, ForwardParams& p) {
  const Image& image = *call.variant.forward_image;
  if (image.find == nullptr) return {};
  const Shape& shape = p.shape;
  const int64_t blocks = (shape.q_len + image.tile_q - 1) / image.tile_q;
  const int64_t tiles = shape.kv_len > 0 ? (shape.kv_len + image.box_kv - 1) / image.box_kv : 1;
  const int64_t words = shape.batch * (image.by_head ? shape.heads : 1) * blocks * ((tiles + 31) / 32);
  const int64_t size = (words * image.word_bytes + 3) / 4;
  const uint32_t grid = find_blocks(call, words, image.word_bytes);
  Tensor found = Tensor::empty(call.device, 1, &size, Dtype::i32, "the tiles of a mask");
  p.workspace = found.data();
  Buffers buffers;
  buffers.add("tiles", p.workspace, size * 4, true);
  add_params(buffers, call.variant, p);
  void* params[] = {&p};
  const int64_t sizes[] = {sizeof(p)};
  launch(call, image, {image.find, 32 * kFinders, 0}, grid, params, sizes, 1, buffers);
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
  launch(call, image, forward_kernel(image), tiles < most ? tiles : most, params, sizes, 4, buffers,
         image.find != nullptr);
}

inline void count_on_device(const Call& call, ForwardParams& p, TileCounts* counts) {
  const Tensor found = find_tiles(call, p);
  Buffers buffers;
  if (found.defined()) buffers.add("tiles", p.workspace, found.numel() * 4, false);
  buffers.add("counts", counts, sizeof(*counts), true);
  add_params(buffers, call.variant, p);
  void* params[] = {&p, &counts};
  const int64_t sizes[] = {sizeof(p), sizeof(counts)};
  const Image& image = *call.variant.forward_image;
  launch(call, image, {image.counts, image.threads, 0}, tiles_of(call, p.shape), params, sizes, 2, buffers);
}

// ---- Backward ----

// What the kernels of a call hand to each other. Memory of it is a stream's to keep until they are done.
class BackwardWork {
 public:
  // Puts it into p. What the first kernel clears is not filled here: that would be a launch more.
  BackwardWork(const Call& call, BackwardParams& p) {
    const VariantRow& variant = call.variant;
    const BackwardImage& image = *variant.backward_image;
    const Shape& shape = p.shape;
    query_tiles_ = tiles_of(call, shape.q_len, image.tile_q, shape.heads, shape.batch, "queries");
    key_tiles_ = tiles_of(call, shape.kv_len, image.tile_kv, shape.kv_heads, shape.batch, "keys");
    const int64_t rows = int64_t{query_tiles_} * image.tile_q;
    p.notes = take(notes_, call, rows * image.note_bytes / 4, Dtype::i32, "notes on query rows");
    p.dq_sums = static_cast<float*>(take(sums_, call, rows * image.sum_bytes / 4, Dtype::f32, "sums of dq"));
    const int64_t turns = image.turns ? 1 + (1 + kDqAdders) * int64_t{key_tiles_} : 0;
    p.turns = static_cast<uint32_t*>(take(turns_, call, turns, Dtype::i32, "turns of key tiles"));
    if (image.find.name != nullptr) {
      const int64_t tiles = (shape.q_len + image.tile_q - 1) / image.tile_q, blocks = (shape.kv_len + image.tile_kv - 1) / image.tile_kv;
      const int64_t words = shape.batch * (image.by_head ? shape.heads : 1) * blocks * ((tiles + 31) / 32);
      find_blocks_ = fagen::host::find_blocks(call, words, image.word_bytes);
      p.workspace = take(found_, call, words * image.word_bytes / 4, Dtype::i32, "the tiles of a mask");
    }
    if (image.round.name == nullptr) return;
    for (int32_t i = 0; i < variant.param_count; ++i) {
      const ArrayView& d = p.d_params[i];
      if (d.data == nullptr) continue;
      const int64_t elements = d.size[0] * d.size[1] * d.size[2] * d.size[3];
      if (elements > elements_) elements_ = elements;
      p.exact[i] = static_cast<uint64_t*>(
          take(exact_[i], call, elements * kExactWords, Dtype::i64, "exact sums of a param's gradient"));
      if (p.exact[i] != nullptr) exact_[i].fill_with_zeros();
    }
  }

  uint32_t query_tiles() const { return query_tiles_; }
  uint32_t key_tiles() const { return key_tiles_; }
  uint32_t find_blocks() const { return find_blocks_; }  // for tiles that a mask admits
  int64_t elements() const { return elements_; }  // of the largest gradient that is summed exactly

  void add_to(Buffers& buffers) const {
    buffers.add("notes", notes_);
    buffers.add("sums of dq", sums_);
    buffers.add("turns", turns_);
    buffers.add("tiles", found_);
    for (const Tensor& exact : exact_) buffers.add("exact sums", exact);
  }

 private:
  static void* take(Tensor& made, const Call& call, int64_t elements, Dtype dtype, const char* what) {
    if (elements == 0) return nullptr;
    made = Tensor::empty(call.device, 1, &elements, dtype, what);
    return made.data();
  }

  Tensor notes_, sums_, turns_, found_, exact_[kMaxParams];
  uint32_t query_tiles_, key_tiles_, find_blocks_ = 0;
  int64_t elements_ = 0;
};

inline Buffers buffers_of(const Call& call, const BackwardParams& p, const BackwardWork& work) {
  const VariantRow& variant = call.variant;
  const Shape& shape = p.shape;
  const int64_t rows = shape.batch * shape.heads * shape.q_len;
  const int64_t queries[2][4] = {{shape.batch, shape.q_len, shape.heads, variant.head_dim},
                                 {shape.batch, shape.q_len, shape.heads, variant.value_dim}};
  const int64_t keys[2][4] = {{shape.batch, shape.kv_len, shape.kv_heads, variant.head_dim},
                              {shape.batch, shape.kv_len, shape.kv_heads, variant.value_dim}};
  Buffers buffers;
  buffers.add("q", p.q, queries[0], variant.dtype, false);
  buffers.add("k", p.k, keys[0], variant.dtype, false);
  buffers.add("v", p.v, keys[1], variant.dtype, false);
  buffers.add("o", p.o, queries[1], variant.dtype, false);
  buffers.add("d_o", p.d_o, queries[1], variant.dtype, false);
  buffers.add("lse", p.lse, rows * 4, false);
  if (p.d_lse != nullptr) buffers.add("d_lse", p.d_lse, rows * 4, false);
  if (p.sink != nullptr) buffers.add("sink", p.sink, shape.heads * 4, false);
  if (p.dropout.rng_state != nullptr) buffers.add("rng_state", p.dropout.rng_state, 16, false);
  buffers.add("dq", p.dq, queries[0], variant.dtype, true);
  buffers.add("dk", p.dk, keys[0], variant.dtype, true);
  buffers.add("dv", p.dv, keys[1], variant.dtype, true);
  if (p.d_sink != nullptr) buffers.add("d_sink", p.d_sink, shape.heads * 4, true);
  add_params(buffers, variant, p);
  for (int32_t i = 0; i < variant.param_count; ++i) {
    if (p.d_params[i].data != nullptr) buffers.add(variant.params[i].name, p.d_params[i], Dtype::f32, true);
  }
  work.add_to(buffers);
  return buffers;
}

// The launches of a variant's row. There are queries; there may be no keys. The kernel that multiplies takes the params, and
// `maps` behind them.
inline void run_backward(const Call& call, BackwardParams& p, const BackwardWork& work, const Buffers& buffers,
                         TensorMap* maps, int32_t map_count) {
  constexpr int64_t kMostBlocks = 1 << 16;  // of a kernel whose threads go through as many elements as there are
  constexpr int kMenders = 4;  // blocks a multiprocessor, of a kernel that seldom has anything to do
  const BackwardImage& image = *call.variant.backward_image;
  void* params[] = {&p, maps, maps + 1, maps + 2, maps + 3};
  const int64_t map = sizeof(TensorMap), sizes[] = {sizeof(p), map, map, map, map};
  const auto run = [&](const Kernel& kernel, uint32_t blocks, bool early = false, int32_t count = 1) {
    launch(call, image, kernel, blocks, params, sizes, count, buffers, early);
  };
  // Kernels that take maps are Hopper's: from `find` to `finish` each begins before the one before it has ended and waits for
  // it, which has waited too. None may leave that out, needed or not.
  const bool early = map_count != 0;
  run(image.prepare, work.query_tiles());
  if (image.find.name != nullptr) run(image.find, work.find_blocks(), early);
  run(image.kernel, work.key_tiles(), early, 1 + map_count);
  if (image.mend.name != nullptr) {
    const int64_t most = int64_t{kMenders} * call.driver.multiprocessors(call.device.index);
    run(image.mend, work.key_tiles() < most ? work.key_tiles() : static_cast<uint32_t>(most), early);
  }
  if (image.finish.name != nullptr) run(image.finish, work.query_tiles(), early);
  if (p.d_sink != nullptr) run(image.sink, static_cast<uint32_t>(p.shape.heads));
  if (work.elements() > 0) {
    const int64_t blocks = (work.elements() + image.round.threads - 1) / image.round.threads;
    run(image.round, static_cast<uint32_t>(blocks < kMostBlocks ? blocks : kMostBlocks));
  }
}

// Of kernels that take pointers alone,
inline void run_backward_on_device(const Call& call, BackwardParams& p) {
  const BackwardWork work(call, p);
  TensorMap none[4];
  run_backward(call, p, work, buffers_of(call, p, work), none, 0);
}

// or maps of tensors too.
inline void run_backward_with_maps(const Call& call, BackwardParams& p) {
  const VariantRow& variant = call.variant;
  const BackwardImage& image = *variant.backward_image;
  const Shape& shape = p.shape;
  const BackwardWork work(call, p);
  TensorMap maps[4];
  encode(call, maps[0], p.q, variant.head_dim, shape.q_len, shape.heads, shape.batch, image.box_q, nullptr);
  encode(call, maps[1], p.k, variant.head_dim, shape.kv_len, shape.kv_heads, shape.batch, image.box_kv, p.q.data);
  encode(call, maps[2], p.v, variant.value_dim, shape.kv_len, shape.kv_heads, shape.batch, image.box_kv, p.q.data);
  encode(call, maps[3], p.d_o, variant.value_dim, shape.q_len, shape.heads, shape.batch, image.box_q, nullptr);
  run_backward(call, p, work, buffers_of(call, p, work), maps, 4);
}

}  // namespace
}  // namespace fagen::host
