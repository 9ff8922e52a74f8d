// Checks an op's arguments against its variant. Every refusal names the op, the argument, what was expected and what
// was found, and is a std::invalid_argument: Python sees a ValueError.
#pragma once
#include <fagen/host/driver.h>
#include <fagen/host/variant.h>

namespace fagen::host {
namespace {

class Arguments {
 public:
  Arguments(const Driver& driver, const VariantRow& variant, const char* op)
      : driver_(driver), variant_(variant), op_(op) {}

  const Shape& shape() const { return shape_; }
  Call call() const { return {driver_, variant_, device_}; }

  [[noreturn]] void refuse(const std::string& argument, const std::string& expected, const std::string& found) const {
    throw std::invalid_argument(std::string(variant_.name) + op_ + ": " + argument + ": expected " + expected +
                                ", found " + found);
  }

  // q fixes the device, q and k fix B, H, Hk, Sq and Skv.
  void take_q_k(const Tensor& q, const Tensor& k) {
    device_ = {driver_.device_type, q.device().index};
    check_kind(q, "q", variant_.dtype);
    check_kind(k, "k", variant_.dtype);
    if (q.rank() != 4) refuse("q", form("Sq", "H", variant_.head_dim), "shape " + q.shape());
    if (k.rank() != 4) refuse("k", form("Skv", "Hk", variant_.head_dim), "shape " + k.shape());
    const int s = variant_.heads_first ? 2 : 1, h = variant_.heads_first ? 1 : 2;
    shape_ = {q.size(0), q.size(h), k.size(h), q.size(s), k.size(s)};
    if (q.size(3) != variant_.head_dim) refuse("q", form("Sq", "H", variant_.head_dim), "shape " + q.shape());
    if (k.size(3) != variant_.head_dim) refuse("k", form("Skv", "Hk", variant_.head_dim), "shape " + k.shape());
    if (k.size(0) != shape_.batch) {
      refuse("k", "batch " + std::to_string(shape_.batch) + " as in q", "shape " + k.shape());
    }
    if (shape_.kv_heads == 0 || shape_.heads % shape_.kv_heads != 0) {
      refuse("q and k", "a number of query heads that is a multiple of the number of key heads",
             std::to_string(shape_.heads) + " query heads and " + std::to_string(shape_.kv_heads) + " key heads");
    }
    for (const int64_t size : {shape_.batch, shape_.heads, shape_.kv_heads, shape_.q_len, shape_.kv_len}) {
      if (size > kMaxLength) {
        refuse("q and k", "batches, heads and lengths up to " + std::to_string(kMaxLength),
               "shapes " + q.shape() + " and " + k.shape());
      }
    }
  }

  // A tensor of the variant's dtype and layout: [B, length, heads, dim], or [B, heads, length, dim].
  TensorView view(const Tensor& t, const char* name, int64_t length, int64_t heads, int64_t dim, void* data) const {
    check_kind(t, name, variant_.dtype);
    const int64_t sizes[4] = {shape_.batch, variant_.heads_first ? heads : length,
                              variant_.heads_first ? length : heads, dim};
    check_shape(t, name, 4, sizes);
    const int s = variant_.heads_first ? 2 : 1, h = variant_.heads_first ? 1 : 2;
    return {data, t.stride(0), t.stride(s), t.stride(h), t.stride(3)};
  }
  TensorView read(const Tensor& t, const char* name, int64_t length, int64_t heads, int64_t dim) const {
    return view(t, name, length, heads, dim, t.data_to_read());
  }

  // Copies of boxes take rows whose elements are adjacent, and places that are multiples of 16 bytes. If `view`, which is
  // of t, has others, a copy of t that is viewed instead: what is returned holds it.
  Tensor copy_for_boxes(const Tensor& t, const char* name, TensorView& view_of_it) const {
    bool fits = reinterpret_cast<uint64_t>(view_of_it.data) % 16 == 0 && (t.size(3) == 1 || t.stride(3) == 1);
    for (int d = 0; d < 3; ++d) {
      const int64_t step = t.stride(d);
      fits = fits && (t.size(d) == 1 || (step > 0 && step % 8 == 0 && step < int64_t{1} << 39));
    }
    if (fits || t.numel() == 0) return {};
    Tensor copy = t.copy(variant_.dtype, name);
    const int s = variant_.heads_first ? 2 : 1, h = variant_.heads_first ? 1 : 2;
    view_of_it = {copy.data(), copy.stride(0), copy.stride(s), copy.stride(h), copy.stride(3)};
    return copy;
  }

  // A new tensor where the arguments are, not filled.
  Tensor empty(int64_t rank, const int64_t* sizes, Dtype dtype, const char* what, const char* of = "") const {
    return Tensor::empty(device_, rank, sizes, dtype, what, of);
  }

  // One of the variant's dtype and layout, and its view.
  Tensor make(const char* name, int64_t length, int64_t heads, int64_t dim, TensorView& view_of_it) const {
    const int64_t sizes[4] = {shape_.batch, variant_.heads_first ? heads : length,
                              variant_.heads_first ? length : heads, dim};
    Tensor made = empty(4, sizes, variant_.dtype, name);
    view_of_it = view(made, name, length, heads, dim, made.data());
    return made;
  }

  // lse and its gradient.
  void check_rows(const Tensor& t, const char* name) const {
    check_kind(t, name, Dtype::f32);
    const int64_t sizes[3] = {shape_.batch, shape_.heads, shape_.q_len};
    check_shape(t, name, 3, sizes);
  }

  void check_sink(const Tensor& t) const {
    check_kind(t, "sink", Dtype::f32);
    check_shape(t, "sink", 1, &shape_.heads);
  }

  void check_rng_state(const Tensor& t) const {
    const int64_t two = 2;
    check_kind(t, "rng_state", Dtype::i64);
    check_shape(t, "rng_state", 1, &two);
  }

  ArrayView param(const Tensor& t, const ParamRow& row) const {
    check_kind(t, row.name, row.dtype);
    bool right = t.rank() == row.rank;
    int64_t any = -1;
    for (int32_t d = 0; right && d < row.rank; ++d) {
      const int64_t extent = row.extents[d];
      if (extent == kAny && any < 0) any = t.size(d);
      right = t.size(d) == (extent == kAny ? any : length_of(extent));
    }
    if (!right) refuse_param(t, row);
    return array(t, t.data_to_read());
  }

  static ArrayView array(const Tensor& t, void* data) {
    ArrayView view{};
    view.data = data;
    for (int64_t d = 0; d < kMaxRank; ++d) {
      view.size[d] = d < t.rank() ? t.size(d) : 1;
      view.stride[d] = d < t.rank() ? t.stride(d) : 0;
    }
    return view;
  }

  // An output the caller brings: every element has a place of its own, and none lies within an input's memory.
  void check_writable(const Tensor& out, const char* name) const {
    if (out.numel() == 0) return;
    int64_t order[4] = {0, 1, 2, 3};
    for (int i = 1; i < 4; ++i) {
      for (int j = i; j > 0 && out.stride(order[j]) < out.stride(order[j - 1]); --j) std::swap(order[j], order[j - 1]);
    }
    int64_t reach = 0;  // the last offset that the dims seen so far lead to
    for (const int64_t d : order) {
      if (out.size(d) > 1 && out.stride(d) <= reach) {
        refuse(name, "a place of its own for every element", "a tensor that overlaps itself");
      }
      reach += (out.size(d) - 1) * out.stride(d);
    }
  }
  void check_apart(const Tensor& out, const char* out_name, const Tensor& in, const char* in_name) const {
    if (out.numel() == 0 || in.numel() == 0) return;
    const char* out_begin = static_cast<const char*>(out.data_to_read());
    const char* in_begin = static_cast<const char*>(in.data_to_read());
    if (out_begin < in_begin + bytes(in) && in_begin < out_begin + bytes(out)) {
      refuse(out_name, std::string("memory apart from that of ") + in_name, "memory in common");
    }
  }

 private:
  void check_kind(const Tensor& t, const char* name, Dtype dtype) const {
    if (t.dtype() != code_of(dtype)) {
      refuse(name, std::string("dtype ") + name_of(code_of(dtype)), name_of(t.dtype()));
    }
    if (!(t.device() == device_)) {
      refuse(name, std::string("device ") + driver_.device + (device_.index > 0 ? ":" + std::to_string(device_.index) : "")
             + ", as the module is built for it", "a tensor elsewhere");
    }
  }

  void check_shape(const Tensor& t, const char* name, int64_t rank, const int64_t* sizes) const {
    bool right = t.rank() == rank;
    for (int64_t d = 0; right && d < rank; ++d) right = t.size(d) == sizes[d];
    if (right) return;
    std::string expected = "shape [";
    for (int64_t d = 0; d < rank; ++d) expected += (d ? ", " : "") + std::to_string(sizes[d]);
    refuse(name, expected + "]", "shape " + t.shape());
  }

  [[noreturn]] void refuse_param(const Tensor& t, const ParamRow& row) const {
    std::string names, sizes;
    for (int32_t d = 0; d < row.rank; ++d) {
      const int64_t extent = row.extents[d];
      const std::string length = extent == kAny ? "n" : std::to_string(length_of(extent));
      names += (d ? ", " : "") + (extent >= 0 ? length : std::string(name_of_extent(extent)));
      sizes += (d ? ", " : "") + length;
    }
    refuse(row.name, "shape [" + names + "] = [" + sizes + "] (expand() a broadcast one)", "shape " + t.shape());
  }

  int64_t length_of(int64_t extent) const {
    switch (extent) {
      case kB: return shape_.batch;
      case kH: return shape_.heads;
      case kHk: return shape_.kv_heads;
      case kSq: return shape_.q_len;
      case kSkv: return shape_.kv_len;
      default: return extent;
    }
  }

  std::string form(const char* length, const char* heads, int64_t dim) const {
    const std::string l = length, h = heads;
    return "shape [B, " + (variant_.heads_first ? h + ", " + l : l + ", " + h) + ", " + std::to_string(dim) + "]";
  }

  static int64_t bytes(const Tensor& t) {
    int64_t last = 0;
    for (int64_t d = 0; d < t.rank(); ++d) last += (t.size(d) - 1) * t.stride(d);
    return (last + 1) * static_cast<int64_t>(aoti_torch_dtype_element_size(t.dtype()));
  }

  const Driver& driver_;
  const VariantRow& variant_;
  const char* op_;
  Device device_{};
  Shape shape_{};
};

}  // namespace
}  // namespace fagen::host
