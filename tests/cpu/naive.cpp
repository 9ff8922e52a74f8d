// A kernel of plain loops that keeps the contract of fagen/params.h: what the ops' tests run where only the host unit
// and the Python side matter. Float32. NAME, HEAD_DIM, VALUE_DIM are defined on the command line, and as wanted CAUSAL,
// ALIBI (params: slope [H]), DOCUMENT (params: doc [B, n]), SCALAR (params: bias []), PAIR (params: pair [n, n]), SINK.
#include <fagen/params.h>

#include <cmath>
#include <limits>

namespace {

using namespace fagen;

float& at(const TensorView& t, int64_t b, int64_t s, int64_t h, int64_t d) {
  return static_cast<float*>(t.data)[b * t.stride_b + s * t.stride_s + h * t.stride_h + d * t.stride_d];
}

template <typename T>
T entry(const ArrayView& a, int64_t i, int64_t j = 0) {
  if (i < 0 || i >= a.size[0] || j < 0 || j >= a.size[1]) return T{};
  return static_cast<const T*>(a.data)[i * a.stride[0] + j * a.stride[1]];
}

template <typename Params>
bool admits(const Params& p, int64_t b, int64_t q, int64_t kv) {
  (void)p, (void)b, (void)q, (void)kv;
#ifdef CAUSAL
  if (kv > q) return false;
#endif
#ifdef DOCUMENT
  if (entry<int32_t>(p.params[0], b, q) != entry<int32_t>(p.params[0], b, kv)) return false;
#endif
  return true;
}

template <typename Params>
float score(const Params& p, float s, int64_t h, int64_t q, int64_t kv) {
  (void)p, (void)h, (void)q, (void)kv;
#ifdef ALIBI
  s -= entry<float>(p.params[0], h) * static_cast<float>(std::abs(q - kv));
#endif
#ifdef PAIR
  s += entry<float>(p.params[0], q, kv);
#endif
#ifdef SCALAR
  s += entry<float>(p.params[0], 0);
#endif
  return s;
}

template <typename Params>
float dot_qk(const Params& p, int64_t b, int64_t h, int64_t i, int64_t j) {
  const int64_t hk = h / (p.shape.heads / p.shape.kv_heads);
  float sum = 0;
  for (int64_t d = 0; d < HEAD_DIM; ++d) sum += at(p.q, b, i, h, d) * at(p.k, b, j, hk, d);
  return sum * p.scale;
}

void forward_rows(int64_t begin, int64_t end, void* ctx) {
  const auto& p = *static_cast<const ForwardParams*>(ctx);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t i = row % p.shape.q_len, h = row / p.shape.q_len % p.shape.heads;
    const int64_t b = row / p.shape.q_len / p.shape.heads, q = i + p.shape.kv_len - p.shape.q_len;
    const int64_t hk = h / (p.shape.heads / p.shape.kv_heads);
    float top = -std::numeric_limits<float>::infinity(), sum = 0, acc[VALUE_DIM] = {};
#ifdef SINK
    top = p.sink[h];
    sum = 1;
#endif
    for (int64_t j = 0; j < p.shape.kv_len; ++j) {
      if (!admits(p, b, q, j)) continue;
      const float x = score(p, dot_qk(p, b, h, i, j), h, q, j), next = std::fmax(top, x);
      const float old = std::exp(top - next), now = std::exp(x - next);
      for (int64_t d = 0; d < VALUE_DIM; ++d) acc[d] = acc[d] * old + now * at(p.v, b, j, hk, d);
      sum = sum * old + now;
      top = next;
    }
    for (int64_t d = 0; d < VALUE_DIM; ++d) at(p.o, b, i, h, d) = sum > 0 ? acc[d] / sum : 0;
    p.lse[row] = sum > 0 ? top + std::log(sum) : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

#define JOIN3(a, b, c) a##b##c
#define JOIN2(a, b, c) JOIN3(a, b, c)
#define KERNEL(what) JOIN2(fagen_, NAME, _##what)

extern "C" {

int64_t KERNEL(forward_workspace)(const ForwardParams*) { return 100; }

void KERNEL(forward)(const ForwardParams* p) {
  static_cast<char*>(p->workspace)[99] = 1;
  p->pool->parallel_for(0, p->shape.batch * p->shape.heads * p->shape.q_len, forward_rows, const_cast<ForwardParams*>(p));
}

void KERNEL(tile_counts)(const ForwardParams* p, TileCounts* counts) {
  counts->total = p->shape.batch * p->shape.heads * p->shape.q_len * p->shape.kv_len;
  for (int64_t b = 0; b < p->shape.batch; ++b) {
    for (int64_t i = 0; i < p->shape.q_len; ++i) {
      for (int64_t j = 0; j < p->shape.kv_len; ++j) {
        counts->full += p->shape.heads * admits(*p, b, i + p->shape.kv_len - p->shape.q_len, j);
      }
    }
  }
}

int64_t KERNEL(backward_workspace)(const BackwardParams*) { return 0; }

void KERNEL(backward)(const BackwardParams* params) {
  const BackwardParams& p = *params;
  const int64_t group = p.shape.heads / p.shape.kv_heads;
  for (int64_t b = 0; b < p.shape.batch; ++b) {
    for (int64_t hk = 0; hk < p.shape.kv_heads; ++hk) {
      for (int64_t j = 0; j < p.shape.kv_len; ++j) {
        for (int64_t d = 0; d < HEAD_DIM; ++d) at(p.dk, b, j, hk, d) = 0;
        for (int64_t d = 0; d < VALUE_DIM; ++d) at(p.dv, b, j, hk, d) = 0;
      }
    }
    for (int64_t h = 0; h < p.shape.heads; ++h) {
      const int64_t hk = h / group;
      for (int64_t i = 0; i < p.shape.q_len; ++i) {
        const int64_t row = (b * p.shape.heads + h) * p.shape.q_len + i, q = i + p.shape.kv_len - p.shape.q_len;
        const float lse = p.lse[row], d_lse = p.d_lse ? p.d_lse[row] : 0;
        float delta = -d_lse;
        for (int64_t d = 0; d < VALUE_DIM; ++d) delta += at(p.o, b, i, h, d) * at(p.d_o, b, i, h, d);
        for (int64_t d = 0; d < HEAD_DIM; ++d) at(p.dq, b, i, h, d) = 0;
#ifdef SINK
        if (p.d_sink) p.d_sink[h] -= std::exp(p.sink[h] - lse) * delta;
#endif
        for (int64_t j = 0; j < p.shape.kv_len; ++j) {
          if (!admits(p, b, q, j)) continue;
          const float weight = std::exp(score(p, dot_qk(p, b, h, i, j), h, q, j) - lse);
          float dp = 0;
          for (int64_t d = 0; d < VALUE_DIM; ++d) {
            dp += at(p.d_o, b, i, h, d) * at(p.v, b, j, hk, d);
            at(p.dv, b, j, hk, d) += weight * at(p.d_o, b, i, h, d);
          }
          const float ds = weight * (dp - delta);
#ifdef ALIBI
          if (p.d_params[0].data) {
            static_cast<float*>(p.d_params[0].data)[h * p.d_params[0].stride[0]] -= ds * std::abs(q - j);
          }
#endif
#ifdef SCALAR
          if (p.d_params[0].data) static_cast<float*>(p.d_params[0].data)[0] += ds;
#endif
          for (int64_t d = 0; d < HEAD_DIM; ++d) {
            at(p.dq, b, i, h, d) += ds * p.scale * at(p.k, b, j, hk, d);
            at(p.dk, b, j, hk, d) += ds * p.scale * at(p.q, b, i, h, d);
          }
        }
      }
    }
  }
}

}  // extern "C"
