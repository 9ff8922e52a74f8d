// What a translated program and the machine that runs it know of each other. A program is a PTX module turned into C++
// (fagen/emulate/translate); it includes this header and scalar.h only and is linked against nothing: the machine hands
// it a table of functions.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fagen::emulate {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using u128 = unsigned __int128;

constexpr int kLanes = 32;

// Generic addresses: shared and local memory lie in windows of their own, far from any pointer of the host; all else is
// global memory, whose addresses are the host's. Within its state space, shared memory begins at kSharedFirst, so that
// a null pointer is no address of it.
constexpr u64 kSharedWindow = u64{1} << 56;
constexpr u64 kLocalWindow = u64{2} << 56;
constexpr u64 kParamWindow = u64{3} << 56;
constexpr u32 kSharedFirst = 1024;

enum class Space : u8 { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

// How an access is ordered: PTX's .weak (also no qualifier), .volatile, .relaxed, .acquire, .release, .acq_rel.
enum class Order : u8 { kWeak, kVolatile, kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class Scope : u8 { kCta, kCluster, kGpu, kSystem };

enum class Atomic : u8 { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor, kExch, kCas };
enum class Type : u8 { kB8, kB16, kB32, kB64, kB128, kU8, kU16, kU32, kU64, kS8, kS16, kS32, kS64,
                       kF16, kF16x2, kBf16, kBf16x2, kF32, kF64, kPred };

// A copy by cp.async.bulk or cp.reduce.async.bulk. Numbers of `type` and `reduce` are those of Type and Reduce.
struct BulkCopy {
  u64 to, from;       // addresses; of a tensor copy, one of them is the tensor map's
  Space to_space, from_space;
  u64 bytes;          // of plain ones
  u32 rank;           // of tensor copies; 0: plain
  s32 at[5];          // coordinates
  bool completes;     // on an mbarrier; else by its bulk group
  u64 mbarrier;
  bool multicast;
  u32 mask;
  u8 reduce;
  Type type;
};

struct Machine;
struct Thread;
struct Warp;

// An instruction that lanes of a warp execute together. `run` is called once all of them are there, with the warp, the
// mask of lanes that take part and this; it reads and writes registers at the offsets `operands` (bytes into a lane's
// registers; what an operand is is agreed between the translator's entry for the instruction and `run`). -1 is none (a
// sink `_`). Immediates are put into registers of their own beforehand. `detail` are numbers known when translating.
struct Collective {
  void (*run)(Machine&, Warp&, u32 mask, const Collective&);
  s32 instruction;  // index into Program::instructions
  bool aligned;     // all lanes of the warp, all at this very instruction
  bool orders;      // orders memory accesses among the lanes (bar.warp.sync alone does)
  s32 operand_count;
  const s32* operands;
  s32 detail[4];
};

// What is noted of a register that some wgmma has as an operand.
constexpr u8 kFlies = 1;    // an accumulator in flight
constexpr u8 kIsRead = 2;   // read as A in flight
constexpr u8 kWritten = 4;  // by an ordinary instruction, since the last wgmma.fence

enum class State : u8 {
  kReady,       // can run
  kCollective,  // waits for the other lanes of `mask` at `collective`
  kBarrier,     // waits at barrier `barrier`
  kWaiting,     // tried something that needs another thread first (a failed try_wait, a spin); run it again later
  kDone,
};

// One PTX thread: a state machine that runs from one yield to the next.
struct Thread {
  const struct Calls* calls;
  Machine* machine;
  struct Block* block;
  char* registers;      // of the program's struct for this kernel; NaN until written, as local memory
  char* local;          // local memory, kernel.local_bytes
  const char* param;    // the launch's parameters
  u32 tid[3], ntid[3], ctaid[3], nctaid[3], cluster_ctaid[3], cluster_nctaid[3], cluster_rank;
  u32 lane, warp, index;  // index: in the block, x fastest
  s32 next;             // where `step` goes on: 0 at first, then what the program set before its yield
  s32 at;               // index of the instruction being executed; set before anything that may fault
  u64* visits;          // how often each counted block of instructions was entered, by all threads
  s32 budget;           // backward branches left before the thread gives others a turn; the machine refills it
  s32 fuel;             // others, of loops that wait for nobody, left before the machine looks at the time
  State state;
  u32 mask;                      // kCollective: who takes part
  const Collective* collective;  // kCollective
  // kBarrier: number, count of threads (0: all of the block), and what a reduction is given and where it goes
  s32 barrier;
  u32 barrier_count;
  u8 barrier_reduce;    // 0 none, 1 popc, 2 and, 3 or
  bool barrier_arrive_only;
  bool barrier_value;
  bool barrier_aligned;
  s32 barrier_result;   // offset of the register for the result; -1 none
};

struct Warp {
  Thread* lanes;  // kLanes of them, or fewer in the last warp of a block
  u32 count;
};

// Operand `n` of the instruction that a lane waits at; lanes may have come to different ones of the same meaning.
inline bool has_operand(const Warp& warp, u32 lane, s32 n) { return warp.lanes[lane].collective->operands[n] >= 0; }
template <typename T>
inline T& operand(const Warp& warp, u32 lane, s32 n) {
  return *reinterpret_cast<T*>(warp.lanes[lane].registers + warp.lanes[lane].collective->operands[n]);
}

// What a program asks of the machine. Each may throw Fault (through the program's frames).
struct Calls {
  void (*load)(Thread&, Space, u64 address, void* to, u32 bytes, Order, Scope);
  void (*store)(Thread&, Space, u64 address, const void* from, u32 bytes, Order, Scope);
  // old value to `old` (nullptr: red); `b` is the compare-and-swap's new value
  void (*atomic)(Thread&, Space, u64 address, Atomic, Type, const void* a, const void* b, void* old, Order, Scope);
  void (*fence)(Thread&, Order, Scope);
  void (*fence_proxy)(Thread&, u32 kind);
  void (*fence_mbarrier_init)(Thread&);
  // cp.async: `bytes` written, of which `source_bytes` are read and the rest zeros
  void (*copy_async)(Thread&, u64 shared, u64 global, u32 bytes, u32 source_bytes);
  void (*copy_commit)(Thread&);
  // wait_group (wait_all: 0 after a commit); false: yield and ask again
  bool (*copy_wait)(Thread&, u32 pending_groups);
  void (*copy_arrive)(Thread&, u64 mbarrier, bool noinc);
  void (*mbarrier_init)(Thread&, Space, u64 address, u32 count);
  void (*mbarrier_inval)(Thread&, Space, u64 address);
  // `stays`: .noComplete, so that it is a fault if the phase completes
  u64 (*mbarrier_arrive)(Thread&, Space, u64 address, u32 count, bool drop, bool expect, u32 bytes, bool stays);
  void (*mbarrier_expect)(Thread&, Space, u64 address, u32 bytes);
  void (*mbarrier_complete)(Thread&, Space, u64 address, u32 bytes);
  bool (*mbarrier_test)(Thread&, Space, u64 address, u64 state_or_parity, bool by_parity);
  u64 (*special)(Thread&, u32 which);  // %clock, %smid, ... : see Special in special.h
  void (*trap)(Thread&);
  // A fault that the program itself finds (division, a bad immediate at run time).
  void (*fault)(Thread&, const char* what);
  s32 (*print)(Thread&, u64 format, u64 arguments);  // vprintf's, generic addresses
  void (*assert_failed)(Thread&, u64 message, u64 file, u32 line);
  void (*tired)(Thread&);  // out of fuel: faults if the launch has taken too long, refills it otherwise
  void (*bulk_copy)(Thread&, const BulkCopy&);
  void (*bulk_commit)(Thread&);
  bool (*bulk_wait)(Thread&, u32 pending_groups, bool read);  // false, here and below: yield and ask again
  bool (*wgmma_wait)(Thread&, u32 pending_groups);
  void (*touched)(Thread&, u32 noted, const char* name, bool write);  // a register that a wgmma has, in flight
  bool (*set_registers)(Thread&, u32 count, bool more);
  void (*cluster_arrive)(Thread&, bool release);
  bool (*cluster_wait)(Thread&, bool acquire);
  u64 (*map_shared)(Thread&, u64 address, u32 rank, bool generic);  // mapa
  u32 (*rank_of)(Thread&, u64 address, bool generic);               // getctarank
};

struct Instruction {
  const char* text;    // as in the PTX
  s32 line;            // in the PTX
  s32 file;            // index into Program::files, -1: no .loc
  s32 source_line;
};

struct Kernel {
  const char* name;
  void (*step)(Thread&);
  u32 register_bytes, local_bytes, param_bytes, shared_bytes;  // shared: the static part
  u32 max_threads;     // .maxntid product, 0: none said
  u32 param_count;
  const u32* param_offsets;
  const u32* param_sizes;
  u32 block_count;     // of its counted blocks of instructions
  u32 noted_offset, noted_count;  // bytes beside the registers, one for each that a wgmma has as an operand
};

struct Variable {  // a .global or .const variable of the module
  const char* name;
  u64 bytes;
  const void* initial;  // nullptr: zeros; put there when a launch begins
  void* address;        // static storage of the program
  bool constant;
};

struct Pointer {  // an address within the initial value of a variable
  s32 variable;
  u64 offset;
  u64 value;
};

struct Program {
  s32 version;  // of this header
  s32 target;   // 75, 80, 90, ...
  s32 kernel_count;
  const Kernel* kernels;
  s32 instruction_count;
  const Instruction* instructions;
  s32 file_count;
  const char* const* files;
  s32 variable_count;
  const Variable* variables;
  s32 pointer_count;
  const Pointer* pointers;
  s32 store_bytes_shared, store_bytes_global;  // the narrowest store to each: how fine shadow memory must be (1, 2, 4)
};

// A program exports: extern "C" const fagen::emulate::Program* fagen_program(void);

}  // namespace fagen::emulate
