// Owning handles to torch tensors over the stable C shim, and what the host unit asks of them.
#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/c/shim.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace fagen::host {
namespace {

inline void call(AOTITorchError status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string("fagen: torch failed at ") + what);
}

enum class Dtype { f32, bf16, f16, i32, i64, boolean };

// torch's own number for a dtype; asked once, since the stable ABI does not fix them.
inline int32_t code_of(Dtype dtype) {
  static const int32_t codes[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16(),
                                  aoti_torch_dtype_int32(),   aoti_torch_dtype_int64(),    aoti_torch_dtype_bool()};
  return codes[static_cast<int>(dtype)];
}

inline const char* name_of(int32_t code) {
  static const char* names[] = {"torch.float32", "torch.bfloat16", "torch.float16",
                                "torch.int32",   "torch.int64",    "torch.bool"};
  for (int i = 0; i < 6; ++i) {
    if (code == code_of(static_cast<Dtype>(i))) return names[i];
  }
  return code == aoti_torch_dtype_float64() ? "torch.float64" : "another dtype";
}

// Where a tensor is: torch's number for the kind of device, and which of that kind.
struct Device {
  int32_t type, index;
  bool operator==(const Device& other) const { return type == other.type && index == other.index; }
};

// One reference to a tensor, let go at the end of its scope.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) { refresh(); }
  Tensor(Tensor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), rank_(other.rank_), sizes_(other.sizes_),
        strides_(other.strides_) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    rank_ = other.rank_;
    sizes_ = other.sizes_;
    strides_ = other.strides_;
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  // A new contiguous tensor on a device, not filled. `what` and `of` say what for, should there be no memory.
  static Tensor empty(Device device, int64_t rank, const int64_t* sizes, Dtype dtype, const char* what,
                      const char* of = "") {
    int64_t strides[8] = {};
    int64_t step = 1;
    bool fits = true;
    for (int64_t d = rank - 1; d >= 0; --d) {
      strides[d] = step;
      fits = !__builtin_mul_overflow(step, sizes[d] > 1 ? sizes[d] : 1, &step) && fits;
    }
    const int32_t code = code_of(dtype);
    AtenTensorHandle made = nullptr;
    if (fits && aoti_torch_empty_strided(rank, sizes, strides, code, device.type, device.index, &made) == 0) return Tensor(made);
    int64_t bytes = 0;
    fits = fits && !__builtin_mul_overflow(step, static_cast<int64_t>(aoti_torch_dtype_element_size(code)), &bytes);
    throw std::runtime_error("fagen: torch could not allocate " +
                             (fits ? std::to_string(bytes) : std::string("2^63 or more")) + " bytes for " + what + of);
  }

  bool defined() const { return handle_ != nullptr; }
  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }
  int64_t rank() const { return rank_; }
  int64_t size(int64_t d) const { return sizes_[d]; }
  int64_t stride(int64_t d) const { return strides_[d]; }

  int64_t numel() const {
    int64_t count = 1;
    for (int64_t d = 0; d < rank_; ++d) count *= sizes_[d];
    return count;
  }

  // For writing to.
  void* data() const {
    void* pointer = nullptr;
    call(torch_get_mutable_data_ptr(handle_, &pointer), "data_ptr");
    return pointer;
  }

  // For reading from; a copy-on-write tensor stays uncopied. The structs a kernel takes have no const to carry on.
  void* data_to_read() const {
    const void* pointer = nullptr;
    call(torch_get_const_data_ptr(handle_, &pointer), "data_ptr");
    return const_cast<void*>(pointer);
  }

  int32_t dtype() const {
    int32_t code = 0;
    call(aoti_torch_get_dtype(handle_, &code), "dtype");
    return code;
  }

  int32_t device_type() const {
    int32_t type = 0;
    call(aoti_torch_get_device_type(handle_, &type), "device_type");
    return type;
  }

  Device device() const {
    Device found{device_type(), 0};
    call(aoti_torch_get_device_index(handle_, &found.index), "device_index");
    return found;
  }

  void fill_with_zeros() const {
    if (numel() != 0) call(aoti_torch_zero_(handle_), "zero_");
  }

  // Whether elements lie one after another in index order; dims of size 1 may have any stride.
  bool contiguous() const {
    int64_t step = 1;
    for (int64_t d = rank_ - 1; d >= 0; --d) {
      if (sizes_[d] != 1 && strides_[d] != step) return false;
      step *= sizes_[d];
    }
    return true;
  }

  // `[2, 128, 8, 64]`, as torch prints a shape.
  std::string shape() const {
    std::string text = "[";
    for (int64_t d = 0; d < rank_; ++d) text += (d ? ", " : "") + std::to_string(sizes_[d]);
    return text + "]";
  }

  // This float tensor, called `name`, with contiguous elements: itself, or a copy.
  Tensor packed(const char* name) && {
    if (contiguous() || numel() == 0) return std::move(*this);
    return copy(Dtype::f32, name);
  }

  // A contiguous copy of this tensor of that dtype, called `name`.
  Tensor copy(Dtype dtype, const char* name) const {
    Tensor made = empty(device(), rank_, sizes_, dtype, "a contiguous copy of ", name);
    call(aoti_torch_copy_(made.handle_, handle_, 0), "copy_");
    return made;
  }

 private:
  void refresh() {
    call(aoti_torch_get_dim(handle_, &rank_), "dim");
    call(aoti_torch_get_sizes(handle_, &sizes_), "sizes");
    call(aoti_torch_get_strides(handle_, &strides_), "strides");
  }

  AtenTensorHandle handle_ = nullptr;
  int64_t rank_ = 0;
  int64_t* sizes_ = nullptr;    // borrowed from the tensor
  int64_t* strides_ = nullptr;  // likewise
};

}  // namespace
}  // namespace fagen::host
