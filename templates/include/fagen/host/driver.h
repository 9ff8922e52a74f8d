// The machine, as all that the host unit asks of it.
#pragma once
#include <cstdint>

namespace fagen::host {
namespace {

// What the kernels of one direction of a variant were compiled to. For CUDA targets.
struct Unit {
  const char* unit;  // "causal_d64_forward": what its source and its PTX are called
  const void* fatbin;
  int32_t number;  // of the target: 80 for sm_80
  bool exact;      // that card alone will do, as for sm_90a
};

// A forward unit, and how its kernels are launched.
struct Image : Unit {
  const char *kernel, *counts;  // "fagen_causal_d64_forward", and the kernel that counts tiles
  int32_t tile_q;  // query rows of a block
  uint32_t threads, shared_bytes;  // of a block; shared memory besides what the kernel declares
  uint32_t box_q = 0, box_kv = 0;  // rows of the boxes that queries and keys are copied by; 0: the kernel sees to its copies
  bool draws = false;              // blocks of threads draw their work, if there is more than one round of it
  const char* find = nullptr;      // the kernel that finds the tiles of a mask for it, or null: then there are none to find
  int32_t word_bytes = 0;          // what that one stores of 32 tiles of a block of rows,
  bool by_head = false;            // for each head, or once for all
};

// A kernel of a backward unit. Without a name there is none.
struct Kernel {
  const char* name = nullptr;
  uint32_t threads = 0, shared_bytes = 0;  // of a block; shared memory besides what the kernel declares
};

// A backward unit, whose kernels are launched one after the other; see launch.h for the grids.
struct BackwardImage : Unit {
  Kernel prepare;   // makes the notes on query rows, clears sums of dQ and counters; a block for a tile of rows
  Kernel kernel;    // the gradients, a block for a tile of keys
  Kernel finish;    // from sums of dQ to dq, a block for a tile of query rows
  Kernel sink;      // the gradient of the sink, a block for a head
  Kernel round;     // from exact sums to gradients of params
  Kernel find;      // the tiles of a mask, a warp for 8 tiles of query rows and a warpgroup's part of a tile of keys
  Kernel mend;      // gradients of keys again, where some are no finite numbers: a few blocks for all tiles of keys
  int32_t tile_q, tile_kv;  // query rows that notes and sums are padded to, and keys of a block
  int32_t note_bytes;  // of a query row's notes
  int32_t sum_bytes;   // of a query row's sums of dQ
  bool turns;          // there are counters of tiles: blocks take turns in adding to dQ, or say what is to be computed again
  uint32_t box_q = 0, box_kv = 0;  // rows of the boxes that queries and keys are copied by; 0: the kernels see to copies
  int32_t word_bytes = 0;          // what `find` stores of 32 tiles,
  bool by_head = false;            // for each head, or once for all
};

// Memory that a kernel may touch.
struct Buffer {
  const char* name;
  const void* address;
  int64_t bytes;
  int32_t writable;
};

// One launch of a kernel. An emulator reads this struct: fagen/emulate/driver.py has its fields, in this order.
struct Launch {
  const char* unit;
  const char* kernel;
  uint32_t grid[3], block[3];
  uint32_t shared_bytes;
  int32_t param_count, buffer_count;
  void* const* params;
  const int64_t* param_bytes;
  const Buffer* buffers;
  uint32_t cluster[3] = {1, 1, 1};  // blocks; a kernel that says its own size needs none here
  int32_t early = 0;  // it may begin before the kernel before it ends, which it waits for itself
};

// What a kernel copies tiles of a tensor by: a CUtensorMap, or an emulator's stand-in.
struct alignas(128) TensorMap {
  uint8_t bytes[128];
};

// One plain table, filled by the file of a target (cpu.h, cuda.h, emulated.h), which the module's binding hands to every
// op. The first two functions are of the CPU, the others of a device; those that it has not are null.
struct Driver {
  const char* device;   // where tensors must be, as torch calls it
  int32_t device_type;  // the same, as torch's number
  int32_t (*threads)();
  // Calls fn(begin, end, ctx) on parts that cover [begin, end), on those threads.
  void (*parallel_for)(int64_t begin, int64_t end, void (*fn)(int64_t, int64_t, void*), void* ctx);
  // Launches on the current stream of a device; an error of the launch is thrown.
  void (*launch)(const Unit&, const Launch&, int32_t device_index);
  int32_t (*multiprocessors)(int32_t device_index);
  // What the blocks of threads of the next launch on that stream draw their work by: a number that is 0 when no kernel
  // runs that has it, and that no two kernels have which may run at once. Null where they do without.
  uint32_t* (*counter)(int32_t device_index);
  // cuTensorMapEncodeTiled, which has the meaning of arguments and numbers: dimensions from the innermost on, strides in
  // bytes and from the second on. Without interleaving. What it refuses is thrown.
  void (*encode_tiled)(TensorMap& map, uint32_t dtype, uint32_t rank, const void* address, const uint64_t* sizes,
                       const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides, uint32_t swizzle,
                       uint32_t l2_promotion, uint32_t oob_fill);
};

}  // namespace
}  // namespace fagen::host
