// The machine: blocks of threads, their memory, and what orders their accesses. Not seen by programs.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "scalar.h"

namespace fagen::emulate {

// ---- faults

enum class FaultKind : s32 {
  kRace, kUninitialised, kOutOfBounds, kMisaligned, kReadOnly, kDeadlock, kBarrier, kCollective, kMbarrier, kLimits,
  kTrap, kProgram, kEndless, kProxy, kWgmma, kTensorMap,
};

// A place of an access or of a wait.
struct Where {
  s32 instruction = -1;
  u32 block[3] = {0, 0, 0}, thread[3] = {0, 0, 0};
  bool known = false;
};

struct Fault {
  FaultKind kind;
  std::string what;  // in words, without places
  Where where, other;
  Space space = Space::kGeneric;
  u64 address = 0;
  u32 bytes = 0;
};

// ---- clocks: who knows of what, as in FastTrack (Flanagan, Freund: PLDI 2009)

// Agents of a block of T threads: thread t is agent t, its copies by cp.async agent T + t. Those two are of the generic
// proxy. Behind them, for each, what is known to have passed a fence to the asynchronous proxy: entry 2 T + agent of a
// clock. From 4 T on: the products of each warpgroup, then, in the order in which they come up, each mbarrier (all bulk
// copies of a phase are one tick of its) and what bulk groups of a thread read and write. An epoch is an agent's clock
// at an access; a vector clock holds what a thread knows of every agent, zero beyond its end.
using Clock = std::vector<u32>;
using Clocks = std::map<u32, Clock>;  // by block
void join(Clock& into, const Clock& from);
inline u32 at(const Clock& clock, u32 agent) { return agent < clock.size() ? clock[agent] : 0; }
inline void raise_to(Clock& clock, u32 agent, u32 time) {
  if (agent >= clock.size()) clock.resize(agent + 1, 0);
  if (clock[agent] < time) clock[agent] = time;
}
void join(Clocks& into, u32 block, const Clock& from);
void join(Clocks& into, const Clocks& from);

// What one access leaves behind.
struct Access {
  u32 block;  // linear index in the grid
  u32 agent;
  u32 clock;
  s32 instruction;
  u32 thread;  // that issued it
};

// Strong accesses do not conflict if the scope of each holds the other's thread.
enum class Strength : u8 { kWeak, kBlock, kCluster, kGrid };
inline bool is_wide(Scope scope) { return scope == Scope::kGpu || scope == Scope::kSystem; }
inline Strength strength_of(Order order, Scope scope) {
  return order == Order::kWeak         ? Strength::kWeak
         : is_wide(scope)              ? Strength::kGrid
         : scope == Scope::kCluster    ? Strength::kCluster
                                       : Strength::kBlock;
}

// Of `grain` bytes of memory: the last write, and reads since.
struct Cell {
  Access write{0, 0, 0, -1, 0};
  Access read{0, 0, 0, -1, 0};
  u32 more_reads = 0;  // index + 1 into Shadow::reads, where several agents read
  Strength write_strength{}, read_strength{};
  bool written = false;
};

struct Block;

// Shadow memory of one range of addresses.
struct Shadow {
  u64 grain = 4;
  std::vector<Cell> cells;
  std::vector<std::vector<std::pair<Access, Strength>>> reads;
};

// What releases at an address tell those who acquire there: all blocks, or their own alone.
struct Published {
  Clocks wide;
  std::map<u32, Clocks> narrow;  // by the releasing block
  u64 owner = ~u64{0};           // the thread that alone has written since
  u64 version = 0;               // another after each release
};

// What a thread would publish by a relaxed write, or has seen by relaxed reads: as far as fences of the block's scope
// reach, and of wider ones.
struct Fenced {
  Clocks narrow, wide;
};

struct Mbarrier {
  u32 expected = 0;   // arrivals a phase
  u32 pending = 0;    // still to come in this phase
  s64 transactions = 0;
  u32 phase = 0;
  Clocks gathering, completed;
  u32 agent = 0;      // of the bulk copies that complete on it
  u32 flying = 0;     // bulk copies of this phase that have not completed
  s64 still = 0;      // their bytes
  u32 maker = 0, made = 0;  // the thread that initialised it, and when
  bool fenced = false;      // by fence.mbarrier_init
};

// ---- memory

struct Buffer {
  u64 begin, end;
  bool writable;
  std::string name;
  Shadow shadow;  // of writable ones
};

struct Copy {  // of cp.async
  u64 shared, global;
  u32 bytes, source_bytes;
  s32 instruction;
  bool done = false;
};
struct CopyGroup {
  std::vector<Copy> copies;
  u32 clock = 0;  // the copying agent's, which the thread learns when it has waited
  bool committed = false;
  std::vector<u64> mbarriers;  // that are told when all copies so far are done
};

// A bulk copy in flight: pieces of memory that go from one place to another, with what they tell when they are there.
struct Piece {
  u8* to;
  const u8* from;  // nullptr: zeros
  u32 bytes;
};
struct Told {  // an mbarrier that bytes complete on
  struct Block* block;
  u64 address;
  u32 bytes;
};
enum class Reduce : u8 { kNone, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
struct Bulk {
  struct Block* block;
  u32 thread;
  s32 instruction;
  std::vector<Piece> pieces;
  std::vector<u8> held;    // what was read and not written yet
  std::vector<Told> told;
  Reduce reduce = Reduce::kNone;
  Type type = Type::kB8;
  u32 group = 0;           // of a store: the bulk group that it will be in
  bool read = false;
};

// A product of a warpgroup's, one warp's rows of it, that has not been carried out.
struct Product {
  const Collective* op;
  u64 a, b;          // descriptors
  bool accumulates;
  u32 serial;        // counted from 1, alike in all warps of a warpgroup
};
struct WarpProducts {
  std::deque<Product> flying;  // issued, and not known to be complete when something was last committed
  std::deque<u32> groups;      // the last serial of each committed group, likewise
  u32 issued = 0, carried = 0, known = 0;
  bool fenced = false;         // ever
};
struct Warpgroup {
  struct Issued {
    s32 instruction;
    u64 a, b;
  };
  std::deque<Issued> issued;  // what the first warp to come there has brought, from `first` on
  u32 first = 0;
};

struct ThreadMore {  // what the machine keeps of a thread
  Clock clock;                      // what it knows
  Clocks others;                    // what it knows of other blocks
  std::unordered_map<u64, std::pair<u32, u32>> waited;  // by mbarrier: its agent and the phase after the one waited for
  Fenced fenced, seen;              // at its last release fence; learnt by relaxed loads, until an acquire fence
  u64 learnt[3] = {};               // of what release it learnt last: address, version, how
  std::vector<Copy> open;           // cp.async since the last commit
  std::deque<CopyGroup> groups;
  u32 groups_committed = 0;
  u32 bulk_agent = 0;               // and the next: reads and writes of its bulk groups; 0: none yet
  u32 bulk_committed = 0, bulk_read = 0, bulk_last = 0;  // groups; those known to have read; the last with copies
  s32 bulk_at = -1;                 // the last store's instruction
  u32 registers = 0;                // that it may use
  bool wants_registers = false;
  u32 cluster_phase = 0;            // arrivals at the cluster's barrier
  Where where;
  std::unordered_map<s32, u32> times;  // that it has come to accesses whose banks are counted, by instruction
};

struct Barrier {
  u32 expected = 0, arrived = 0;
  std::vector<u32> waiting;
  Clock clock;
  u32 count = 0;
  Clocks others;
  u32 trues = 0;
};

enum class Completions : s32 { kEarliest, kLatest, kRandom };

// Blocks that run together and see each other's shared memory, and their barrier.
struct Cluster {
  std::vector<struct Block*> blocks;
  u32 phase = 0, arrived = 0;
  Clocks gathering, completed;
  bool spent = false;  // all of its blocks are done
};

struct Block {
  std::shared_ptr<Cluster> cluster;
  u32 rank = 0;   // in the cluster
  u32 agents = 0;
  s64 free_registers = 0;
  std::vector<WarpProducts> products;  // by warp
  std::vector<Warpgroup> warpgroups;
  u32 index, coordinates[3];
  u32 threads, warps;
  std::vector<Thread> thread;
  std::vector<ThreadMore> more;
  std::vector<Warp> warp;
  std::vector<char> registers, local;
  std::vector<u8> shared;
  Shadow shadow;
  std::unordered_map<u64, Published> published;
  std::unordered_map<u64, Mbarrier> mbarriers;
  std::array<Barrier, 16> barriers;
  // Where banks are counted: what lanes touch, by instruction, warp and the how manieth time.
  std::map<std::tuple<s32, u32, u32>, std::array<std::pair<u64, u32>, kLanes>> accesses;
  u32 live = 0;
};

inline ThreadMore& more(Thread& t) { return t.block->more[t.index]; }

struct Machine {
  const Program* program;
  const Kernel* kernel;
  Calls calls;
  u32 grid[3], block_size[3], cluster[3];
  u32 registers;  // a thread's when it begins
  std::vector<Bulk> bulk;  // in flight
  u32 dynamic_shared, shared_bytes;
  const char* param;
  std::vector<Buffer> buffers;
  std::unordered_map<u64, Published> published;    // at global addresses
  std::unordered_map<u64, Mbarrier> mbarriers;
  Completions completions;
  bool checks;
  std::mt19937_64 random;
  std::vector<u64> visits;
  std::vector<u64> conflicts;  // of banks, by instruction; empty: they are not counted
  std::vector<std::unique_ptr<Block>> blocks;  // being run
  u64 releases = 0;
  u64 progress = 0;    // counts what may let somebody go on
  u64 ticks = 0;
  u64 barriers_met = 0, collectives_met = 0, switches = 0;
  double seconds = 0;  // of the processor's, after which it gives up; 0: never
  double start = 0;

  bool flip() { return random() & 1; }
};

// ---- launch.cpp
[[noreturn]] void raise(Machine&, const Thread&, FaultKind, const std::string& what, Space = Space::kGeneric,
                        u64 address = 0, u32 bytes = 0);
Where place_of(const Machine&, const Thread&);

// ---- machine.cpp
double processor_seconds();  // that this thread has had: another program may have the processor meanwhile
void run_grid(Machine&);
void tired(Thread&);  // it has run long without giving way

// ---- special.cpp
u64 special(Thread&, u32);

// ---- deadlock.cpp
[[noreturn]] void deadlock(Machine&);
u64 waiting_registers(const Machine&);  // another number if those who spin have come any further

// ---- memory.cpp
struct Range {  // where an access goes
  Space space;
  u8* data;
  Shadow* shadow;   // nullptr: not watched
  u64 offset;       // into the shadow's bytes
  u64 address;      // in its space; of shared memory in its block's
  Block* owner;     // of shared memory
};
Range find(Thread&, Space, u64 address, u32 bytes, bool write);
// As find, of any number of bytes, at a multiple of `align`.
Range find_all(Thread&, Space, u64 address, u64 bytes, u32 align, bool write);
// Records an access by an agent that knows `knows`, and faults if it conflicts with one that nothing orders.
// `owner`: the block whose agent it is. Agents from 4 T on are of the asynchronous proxy.
void watch(Machine&, Thread&, const Range&, u32 bytes, bool write, Strength, u32 agent, u32 clock, s32 instruction,
           const Block* owner = nullptr);
// Faults if an ordinary access touches an mbarrier.
void keep_off_mbarriers(Thread&, const Range&, u32 bytes);
void load(Thread&, Space, u64, void*, u32, Order, Scope);
void store(Thread&, Space, u64, const void*, u32, Order, Scope);
void atomic(Thread&, Space, u64, Atomic, Type, const void*, const void*, void*, Order, Scope);
// A lane's part of a collective access to shared memory.
void read_shared(Machine&, Thread&, u64 address, void* to, u32 bytes);
void write_shared(Machine&, Thread&, u64 address, const void* from, u32 bytes);
void tick(Thread&);  // the thread's next accesses are later than what it has told others

// ---- sync.cpp
Clocks known(Thread&);                   // all that it knows, its own block among the others
void take_in(Thread&, const Clocks&);
void fence(Thread&, Order, Scope);
void fence_proxy(Thread&, u32);
void fence_mbarrier_init(Thread&);
void publish(Thread&, const Range&, Order, Scope, bool atomic);
void learn(Thread&, const Range&, Order, Scope);
bool meet_at_barriers(Machine&, Block&);  // lets go of barriers that are complete; whether any was
void arrive_at_barrier(Machine&, Block&, u32 thread);

// ---- mbarrier.cpp
void mbarrier_init(Thread&, Space, u64, u32);
void mbarrier_inval(Thread&, Space, u64);
u64 mbarrier_arrive(Thread&, Space, u64, u32, bool, bool, u32, bool);
void mbarrier_expect(Thread&, Space, u64, u32);
void mbarrier_complete(Thread&, Space, u64, u32);
bool mbarrier_test(Thread&, Space, u64, u64, bool);
Mbarrier& mbarrier_for_bulk(Thread&, Block&, u64 address);  // one that a bulk copy may complete on
void check_expected(Thread&, Block&, u64 address);  // that a phase all have arrived at expects the bytes that fly
void complete_bytes(Machine&, Block&, u64 address, u32 bytes);  // as complete_tx, by what has flown
void expect_copies(Thread&, u64 address);  // one more arrival, of the agent of a thread's copies
void arrive_for_copies(Thread&, u64 address, const Clock& clock);  // that arrival, with what the agent knows

// ---- cluster.cpp
void cluster_arrive(Thread&, bool release);
bool cluster_wait(Thread&, bool acquire);
u64 map_shared(Thread&, u64 address, u32 rank, bool generic);
u32 rank_of(Thread&, u64 address, bool generic);

// ---- banks.cpp
void count_banks(Thread&, u64 address, u32 bytes);  // of a lane's access to shared memory
void add_conflicts(Machine&, const Block&);         // of a block that has ended

// ---- async.cpp
void copy_async(Thread&, u64, u64, u32, u32);
void copy_commit(Thread&);
bool copy_wait(Thread&, u32);
void copy_arrive(Thread&, u64, bool);
void complete_some(Thread&);  // a random part of what is open
bool complete_all(Thread&);   // everything; whether there was anything

// ---- bulk.cpp
void bulk_copy(Thread&, const BulkCopy&);
void bulk_commit(Thread&);
bool bulk_wait(Thread&, u32 pending, bool read);
bool land_bulk(Machine&, bool all);  // all that flies, or a random part; whether there was anything
void leave(Machine&, Block&);         // the block ends: what still flies must not need it

// ---- reduce.cpp
void put(const Bulk&, u8* to, const u8* from, u32 bytes);

// ---- wgmma.cpp
bool wgmma_wait(Thread&, u32 pending);
void carry_out_some(Machine&, Block&, u32 warp);
void touched(Thread&, u32 noted, const char* name, bool write);

// ---- budget.cpp
bool set_registers(Thread&, u32 count, bool more);

// ---- print.cpp
s32 print(Thread&, u64 format, u64 arguments);
void assert_failed(Thread&, u64 message, u64 file, u32 line);

}  // namespace fagen::emulate
