// The ops of a module, as boxed functions: take the arguments off torch's stack, check them, fill the kernel's params,
// run it, put the results back. One code for all variants, driven by their rows.
#pragma once
#include <fagen/host/arguments.h>

#include <cmath>
#include <cstring>

namespace fagen::host {
namespace {

constexpr int kMaxTensors = kMaxParams + 8;

// Takes over the tensors of an op's stack, in order, and lets go of them at the end of the call, come what may.
class Stack {
 public:
  explicit Stack(StableIValue* values) : values_(values) {}
  Tensor tensor() { return Tensor(reinterpret_cast<AtenTensorHandle>(values_[next_++])); }

  Tensor optional_tensor() {
    auto* boxed = reinterpret_cast<StableIValue*>(values_[next_++]);
    if (boxed == nullptr) return {};
    Tensor held(reinterpret_cast<AtenTensorHandle>(*boxed));
    delete boxed;  // torch allocates it for the callee to free
    return held;
  }

  int64_t integer() { return static_cast<int64_t>(values_[next_++]); }

  double real() {
    double value;
    std::memcpy(&value, &values_[next_++], sizeof(value));
    return value;
  }

  void put(Tensor&& t) { values_[filled_++] = reinterpret_cast<StableIValue>(t.release()); }

 private:
  StableIValue* values_;
  int next_ = 0, filled_ = 0;
};

inline void take_params(const VariantRow& variant, Stack& stack, Tensor* held) {
  for (int32_t i = 0; i < variant.param_count; ++i) held[i] = stack.tensor();
}

// What a call of a variant with dropout says of it: where its random numbers come from, and which of them drop a weight.
inline Dropout dropout_of(const Arguments& arguments, Tensor& rng_state, double dropout_p) {
  if (!(dropout_p >= 0.0 && dropout_p < 1.0)) {
    arguments.refuse("dropout_p", "0 <= dropout_p < 1", std::to_string(dropout_p));
  }
  arguments.check_rng_state(rng_state);
  if (!rng_state.contiguous()) rng_state = rng_state.copy(Dtype::i64, "rng_state");
  return {static_cast<const int64_t*>(rng_state.data_to_read()),
          static_cast<uint32_t>(std::floor(dropout_p * 65536.0 + 0.5)), static_cast<float>(1.0 / (1.0 - dropout_p))};
}

// NAME_forward(q, k, v, [sink], [params], [rng_state], scale, [dropout_p]) -> (o, lse)
// NAME_forward_out(q, k, v, [sink], [params], [rng_state], scale, [dropout_p], out) -> lse
inline void forward(const Driver& driver, const VariantRow& variant, StableIValue* values, bool into_out) {
  Stack stack(values);
  const Tensor q = stack.tensor(), k = stack.tensor(), v = stack.tensor();
  Tensor sink = variant.sink ? stack.tensor() : Tensor();
  Tensor params[kMaxParams];
  take_params(variant, stack, params);
  Tensor rng_state = variant.dropout ? stack.tensor() : Tensor();
  ForwardParams p{};
  p.scale = static_cast<float>(stack.real());
  const double dropout_p = variant.dropout ? stack.real() : 0.0;
  Tensor o = into_out ? stack.tensor() : Tensor();

  Arguments arguments(driver, variant, into_out ? "_forward_out" : "_forward");
  arguments.take_q_k(q, k);
  const Shape& shape = p.shape = arguments.shape();
  p.unit = std::fmax(std::fabs(p.scale), kLeastUnit) * kLog2e;  // of NaN too, with which -inf would make no -inf
  p.share = std::ldexp(1.0f, -std::ilogb(static_cast<double>(shape.kv_len) + 0.5) - 1);
  p.q = arguments.read(q, "q", shape.q_len, shape.heads, variant.head_dim);
  p.k = arguments.read(k, "k", shape.kv_len, shape.kv_heads, variant.head_dim);
  p.v = arguments.read(v, "v", shape.kv_len, shape.kv_heads, variant.value_dim);
  Tensor copies[3];
  if (variant.forward_image != nullptr && variant.forward_image->box_q != 0) {
    copies[0] = arguments.copy_for_boxes(q, "q", p.q);
    copies[1] = arguments.copy_for_boxes(k, "k", p.k);
    copies[2] = arguments.copy_for_boxes(v, "v", p.v);
  }
  if (variant.sink) {
    arguments.check_sink(sink);
    sink = std::move(sink).packed("sink");
    p.sink = static_cast<const float*>(sink.data_to_read());
  }
  for (int32_t i = 0; i < variant.param_count; ++i) p.params[i] = arguments.param(params[i], variant.params[i]);
  if (variant.dropout) p.dropout = dropout_of(arguments, rng_state, dropout_p);
  if (into_out) {
    p.o = arguments.view(o, "out", shape.q_len, shape.heads, variant.value_dim, o.data());
    arguments.check_writable(o, "out");
    arguments.check_apart(o, "out", q, "q");
    arguments.check_apart(o, "out", k, "k");
    arguments.check_apart(o, "out", v, "v");
    if (variant.sink) arguments.check_apart(o, "out", sink, "sink");
    for (int32_t i = 0; i < variant.param_count; ++i) {
      arguments.check_apart(o, "out", params[i], variant.params[i].name);
    }
    if (variant.dropout) arguments.check_apart(o, "out", rng_state, "rng_state");
  } else {
    o = arguments.make("o", shape.q_len, shape.heads, variant.value_dim, p.o);
  }
  const int64_t rows[3] = {shape.batch, shape.heads, shape.q_len};
  Tensor lse = arguments.empty(3, rows, Dtype::f32, "lse");
  p.lse = static_cast<float*>(lse.data());

  if (lse.numel() != 0) variant.launches.forward(arguments.call(), p);
  if (!into_out) stack.put(std::move(o));
  stack.put(std::move(lse));
}

// NAME_backward(d_o, d_lse?, q, k, v, o, lse, [sink], [params], [rng_state], scale, [dropout_p], needs)
//     -> (dq, dk, dv, [d_sink], [d_params])
// Bit 0 of `needs` asks for d_sink, bit 1 + i for the gradient of param i; those not asked for come back empty.
inline void backward(const Driver& driver, const VariantRow& variant, StableIValue* values) {
  Stack stack(values);
  const Tensor d_o = stack.tensor();
  Tensor d_lse = stack.optional_tensor();
  const Tensor q = stack.tensor(), k = stack.tensor(), v = stack.tensor(), o = stack.tensor();
  Tensor lse = stack.tensor();
  Tensor sink = variant.sink ? stack.tensor() : Tensor();
  Tensor params[kMaxParams];
  take_params(variant, stack, params);
  Tensor rng_state = variant.dropout ? stack.tensor() : Tensor();
  BackwardParams p{};
  p.scale = static_cast<float>(stack.real());
  const double dropout_p = variant.dropout ? stack.real() : 0.0;
  const int64_t needs = stack.integer();

  Arguments arguments(driver, variant, "_backward");
  arguments.take_q_k(q, k);
  const Shape& shape = p.shape = arguments.shape();
  p.q = arguments.read(q, "q", shape.q_len, shape.heads, variant.head_dim);
  p.k = arguments.read(k, "k", shape.kv_len, shape.kv_heads, variant.head_dim);
  p.v = arguments.read(v, "v", shape.kv_len, shape.kv_heads, variant.value_dim);
  p.o = arguments.read(o, "o", shape.q_len, shape.heads, variant.value_dim);
  p.d_o = arguments.read(d_o, "d_o", shape.q_len, shape.heads, variant.value_dim);
  Tensor copies[4];
  if (variant.backward_image != nullptr && variant.backward_image->box_q != 0) {
    copies[0] = arguments.copy_for_boxes(q, "q", p.q);
    copies[1] = arguments.copy_for_boxes(k, "k", p.k);
    copies[2] = arguments.copy_for_boxes(v, "v", p.v);
    copies[3] = arguments.copy_for_boxes(d_o, "d_o", p.d_o);
  }
  arguments.check_rows(lse, "lse");
  lse = std::move(lse).packed("lse");
  p.lse = static_cast<const float*>(lse.data_to_read());
  if (d_lse.defined()) {
    arguments.check_rows(d_lse, "d_lse");
    d_lse = std::move(d_lse).packed("d_lse");
    p.d_lse = static_cast<const float*>(d_lse.data_to_read());
  }

  Tensor dq = arguments.make("dq", shape.q_len, shape.heads, variant.head_dim, p.dq);
  Tensor dk = arguments.make("dk", shape.kv_len, shape.kv_heads, variant.head_dim, p.dk);
  Tensor dv = arguments.make("dv", shape.kv_len, shape.kv_heads, variant.value_dim, p.dv);
  const int64_t nothing = 0;
  const auto zeros = [&](const Tensor& like, const char* name, bool wanted) {
    int64_t sizes[kMaxRank];
    for (int64_t d = 0; d < like.rank(); ++d) sizes[d] = like.size(d);
    Tensor made = arguments.empty(wanted ? like.rank() : 1, wanted ? sizes : &nothing, Dtype::f32, "the gradient of ",
                                  name);
    made.fill_with_zeros();
    return made;
  };
  Tensor d_sink;
  if (variant.sink) {
    arguments.check_sink(sink);
    sink = std::move(sink).packed("sink");
    p.sink = static_cast<const float*>(sink.data_to_read());
    d_sink = zeros(sink, "sink", needs & 1);
    if (needs & 1) p.d_sink = static_cast<float*>(d_sink.data());
  }
  Tensor d_params[kMaxParams];
  for (int32_t i = 0; i < variant.param_count; ++i) {
    p.params[i] = arguments.param(params[i], variant.params[i]);
    if (!variant.params[i].grad) continue;
    const bool wanted = (needs >> (1 + i)) & 1;
    d_params[i] = zeros(params[i], variant.params[i].name, wanted);
    if (wanted) p.d_params[i] = Arguments::array(d_params[i], d_params[i].data());
  }

  if (variant.dropout) p.dropout = dropout_of(arguments, rng_state, dropout_p);

  if (lse.numel() == 0) {  // no query: nothing reaches the keys
    dk.fill_with_zeros();
    dv.fill_with_zeros();
  } else {
    variant.launches.backward(arguments.call(), p);
  }
  stack.put(std::move(dq));
  stack.put(std::move(dk));
  stack.put(std::move(dv));
  if (variant.sink) stack.put(std::move(d_sink));
  for (int32_t i = 0; i < variant.param_count; ++i) {
    if (variant.params[i].grad) stack.put(std::move(d_params[i]));
  }
}

// NAME_tile_counts(q, k, [params]) -> int64 [total, full, partial, empty]
inline void tile_counts(const Driver& driver, const VariantRow& variant, StableIValue* values) {
  Stack stack(values);
  const Tensor q = stack.tensor(), k = stack.tensor();
  Tensor params[kMaxParams];
  take_params(variant, stack, params);

  Arguments arguments(driver, variant, "_tile_counts");
  arguments.take_q_k(q, k);
  ForwardParams p{};
  p.shape = arguments.shape();
  for (int32_t i = 0; i < variant.param_count; ++i) p.params[i] = arguments.param(params[i], variant.params[i]);
  const int64_t four = 4;
  Tensor made = arguments.empty(1, &four, Dtype::i64, "the counts");
  made.fill_with_zeros();
  if (p.shape.batch != 0 && p.shape.heads != 0) {
    variant.launches.tile_counts(arguments.call(), p, static_cast<TileCounts*>(made.data()));
  }
  stack.put(std::move(made));
}

}  // namespace
}  // namespace fagen::host
