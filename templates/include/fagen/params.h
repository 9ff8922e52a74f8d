// What the host hands to a CPU kernel: plain structs, no torch. Strides count elements, not bytes.
#pragma once
#include <cstdint>

namespace fagen {

constexpr int kMaxParams = 16;  // run-time inputs a variant's expressions may read
constexpr int kMaxRank = 4;     // of such an input
// Sequences are no longer than this, nor are there more heads or batch entries: sums and differences of two indices fit
// 32 bits.
constexpr int64_t kMaxLength = int64_t{1} << 28;
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLeastUnit = 1.2e-38f;  // of scores: -inf times it is -inf
constexpr int kDqAdders = 2;  // warps of a block that add to dQ on Hopper, each of which takes turns with those of others
constexpr int kFinders = 2;  // warps of a block that find the tiles of a mask: few words spread over many multiprocessors
constexpr int kExactWords = 6;  // of an exact sum of float32 numbers: cuda/exact_sum.h

// A query, key, value, output or gradient tensor seen as [batch, sequence, head, dim], whatever its layout.
struct TensorView {
  void* data;
  int64_t stride_b, stride_s, stride_h, stride_d;
};

// A run-time input of an expression (or its float32 gradient). Unused dims have size 1 and stride 0.
struct ArrayView {
  void* data;
  int64_t size[kMaxRank];
  int64_t stride[kMaxRank];
};

// The thread pool (torch's own): calls fn(begin, end, ctx) on parts that cover [begin, end), in parallel.
struct Pool {
  void (*parallel_for)(int64_t begin, int64_t end, void (*fn)(int64_t, int64_t, void*), void* ctx);
  int32_t threads;
};

struct Shape {
  int64_t batch, heads, kv_heads, q_len, kv_len;
};

// Which weights are dropped; see philox.h. All zero in variants without dropout.
struct Dropout {
  const int64_t* rng_state;  // [2] contiguous: seed, offset
  uint32_t threshold;        // a pair whose 16-bit number is below it is dropped
  float factor;              // 1 / (1 - dropout_p): of what is kept
};

struct ForwardParams {
  Shape shape;
  float scale;  // natural units, already defaulted
  // Of cards, so that no loop computes them: |scale| · log2(e), of kLeastUnit at least; and 2^-n for n bits of kv_len, of
  // which as many as there are keys sum to 1 at most.
  float unit, share;
  TensorView q, k, v;
  TensorView o;     // written whole
  float* lse;       // [B, H, Sq] contiguous, natural log, written whole
  const float* sink;  // [H] contiguous, or nullptr
  ArrayView params[kMaxParams];
  void* workspace;  // as many bytes as the kernel's workspace function asked for, 64-byte aligned
  const Pool* pool;
  uint32_t* drawn;  // of cards: blocks that have been drawn, 0 before and after; or nullptr: each has its share
  Dropout dropout;
};

struct BackwardParams {
  Shape shape;
  float scale;
  TensorView q, k, v, o, d_o;
  const float* lse;    // [B, H, Sq] contiguous
  const float* d_lse;  // [B, H, Sq] contiguous, or nullptr: zero
  const float* sink;   // [H] contiguous, or nullptr
  TensorView dq, dk, dv;                // written whole
  float* d_sink;                        // [H] float32 zero-filled, or nullptr: not wanted
  ArrayView params[kMaxParams];
  ArrayView d_params[kMaxParams];       // float32, zero-filled; data nullptr: not wanted
  void* workspace;
  const Pool* pool;
  // Of cards. What [B, H] have of each query row, rows being padded to whole tiles, in the kernels' own order:
  void* notes;
  float* dq_sums;
  // Counters: of tiles of keys of all key heads, then one, then kDqAdders of each tile of keys. The first kernel clears these
  // and dq_sums.
  uint32_t* turns;
  uint64_t* exact[kMaxParams];  // sums of d_params, kExactWords an element; zero-filled, or nullptr: not wanted
  Dropout dropout;
};

// How a mask falls into tiles; see module.tile_counts.
struct TileCounts {
  int64_t total;    // tiles of the whole score matrix, over batch and heads
  int64_t full;     // run without mask code
  int64_t partial;  // run with mask code
  int64_t empty;    // among the partial ones: no pair admitted, so visited in vain
};

// What every rendered CPU kernel exports, with C linkage, NAME being the variant's name:
//   int64_t fagen_NAME_forward_workspace(const ForwardParams*);   bytes
//   void    fagen_NAME_forward(const ForwardParams*);
//   void    fagen_NAME_tile_counts(const ForwardParams*, TileCounts*);   reads shape and params only
//   int64_t fagen_NAME_backward_workspace(const BackwardParams*);
//   void    fagen_NAME_backward(const BackwardParams*);

}  // namespace fagen
