// dropout_v192_h100, forward, of spec cards: rendered by fagen, do not edit.
// mask: causal
// score: s
#include "fagen/cuda/math.h"
#include "fagen/cuda/dropout.h"
#include "fagen/cuda/exclude_unrolled.h"
#include "fagen/cuda/fragment_rows.h"
#include "fagen/cuda/group_tiles.h"
#include "fagen/cuda/ring.h"
#include "fagen/cuda/row_softmax.h"
#include "fagen/cuda/shared_elements.h"
#include "fagen/cuda/slabs.h"
#include "fagen/cuda/warp_scores.h"
#include "fagen/ptx/tensor.h"
#include "fagen/ptx/warpgroup.h"

namespace fagen {
namespace {

using Element = Bf16;  // of q, k, v and o in memory

constexpr int kHeadDim = 64;
constexpr int kValueDim = 192;
constexpr int kTileKv = 96;  // keys of a tile
constexpr int kGroups = 2;  // warpgroups that multiply, 64 query rows each; one more feeds them
constexpr int kStages = 2;  // tiles of K and V in shared memory
constexpr int kQueryStages = 2;  // blocks of query rows in shared memory
constexpr int kPlanned = 8;  // that are scheduled, those in shared memory among them

constexpr int kTileQ = 64 * kGroups;
constexpr int kThreads = 128 * (kGroups + 1);
constexpr uint32_t kSeenByNone = ((1 << kGroups) - 1) * TileFound::kNone;
constexpr uint32_t kAllGroups = (1 << kGroups) - 1;
constexpr int kScreeners = 2;  // warps that look for values that are no finite numbers
constexpr int kRowTiles = 1;  // of 16 rows, that a warp has
constexpr int kKeyTiles = kTileKv / 8;
constexpr int kValueTiles = kValueDim / 8;

// Rows lie in shared memory in slabs of 64 elements, 128 bytes, the last one filled up with zeros.
constexpr int kSlabBytes = 128;
constexpr int kHeadSlabs = (kHeadDim + 63) / 64;
constexpr int kValueSlabs = (kValueDim + 63) / 64;
constexpr int kStagedSlabs = 2;  // of a warp's rows of o, on their way
constexpr int kQBytes = 64 * kHeadSlabs * kSlabBytes;  // of a warpgroup
constexpr int kKBytes = kTileKv * kHeadSlabs * kSlabBytes;
constexpr int kVBytes = kTileKv * kValueSlabs * kSlabBytes;

using Scores = float[kRowTiles][kKeyTiles][4];
using Sums = float[kValueTiles][4];

// Rows [i, i + rows) of head h in batch b against keys [j, j + keys).
struct Block {
  int32_t b, h, i, rows, j;
  static constexpr int32_t keys = kTileKv;
};

// Whether the mask admits the pair at `row` and `column` of a block.
__device__ __forceinline__ bool admits(const ForwardParams& p, const Block& at, int row, int column) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const int32_t i = at.i + row;
  const int32_t q = i + kv_len - q_len;
  const int32_t j = at.j + column;
  const int32_t kv = j;
  return kv <= q;
}

// The same, of a block.
__device__ __forceinline__ auto pair_test(const ForwardParams& p, const Block& at) {
  return [&p, at](int row, int column) { return admits(p, at, row, column); };
}

// x (+)= q · k of 64 rows and 96 keys, 16 elements of each, both in shared memory.
__device__ __forceinline__ void multiply_keys(float (&x)[kKeyTiles][4], uint64_t q, uint64_t k, uint32_t accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %50, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47 }, "
      "%48, %49, p, 1, 1, 0, 0; }"
      : "+f"(x[0][0]), "+f"(x[0][1]), "+f"(x[0][2]), "+f"(x[0][3]), "+f"(x[1][0]), "+f"(x[1][1]), "+f"(x[1][2]), "+f"(x[1][3]), "+f"(x[2][0]), "+f"(x[2][1]), "+f"(x[2][2]), "+f"(x[2][3]), "+f"(x[3][0]), "+f"(x[3][1]), "+f"(x[3][2]), "+f"(x[3][3]), "+f"(x[4][0]), "+f"(x[4][1]), "+f"(x[4][2]), "+f"(x[4][3]), "+f"(x[5][0]), "+f"(x[5][1]), "+f"(x[5][2]), "+f"(x[5][3]), "+f"(x[6][0]), "+f"(x[6][1]), "+f"(x[6][2]), "+f"(x[6][3]), "+f"(x[7][0]), "+f"(x[7][1]), "+f"(x[7][2]), "+f"(x[7][3]), "+f"(x[8][0]), "+f"(x[8][1]), "+f"(x[8][2]), "+f"(x[8][3]), "+f"(x[9][0]), "+f"(x[9][1]), "+f"(x[9][2]), "+f"(x[9][3]), "+f"(x[10][0]), "+f"(x[10][1]), "+f"(x[10][2]), "+f"(x[10][3]), "+f"(x[11][0]), "+f"(x[11][1]), "+f"(x[11][2]), "+f"(x[11][3])
      : "l"(q), "l"(k), "r"(accumulate));
}

// o (+)= weights · v of 64 rows and 192 columns, 16 keys of each; the weights are in registers.
__device__ __forceinline__ void multiply_values(float (&o)[kValueTiles][4], const uint32_t* w, uint64_t v,
                                                uint32_t accumulate) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %101, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
      "{ %0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95 }, "
      "{ %96, %97, %98, %99 }, %100, p, 1, 1, 1; }"
      : "+f"(o[0][0]), "+f"(o[0][1]), "+f"(o[0][2]), "+f"(o[0][3]), "+f"(o[1][0]), "+f"(o[1][1]), "+f"(o[1][2]), "+f"(o[1][3]), "+f"(o[2][0]), "+f"(o[2][1]), "+f"(o[2][2]), "+f"(o[2][3]), "+f"(o[3][0]), "+f"(o[3][1]), "+f"(o[3][2]), "+f"(o[3][3]), "+f"(o[4][0]), "+f"(o[4][1]), "+f"(o[4][2]), "+f"(o[4][3]), "+f"(o[5][0]), "+f"(o[5][1]), "+f"(o[5][2]), "+f"(o[5][3]), "+f"(o[6][0]), "+f"(o[6][1]), "+f"(o[6][2]), "+f"(o[6][3]), "+f"(o[7][0]), "+f"(o[7][1]), "+f"(o[7][2]), "+f"(o[7][3]), "+f"(o[8][0]), "+f"(o[8][1]), "+f"(o[8][2]), "+f"(o[8][3]), "+f"(o[9][0]), "+f"(o[9][1]), "+f"(o[9][2]), "+f"(o[9][3]), "+f"(o[10][0]), "+f"(o[10][1]), "+f"(o[10][2]), "+f"(o[10][3]), "+f"(o[11][0]), "+f"(o[11][1]), "+f"(o[11][2]), "+f"(o[11][3]), "+f"(o[12][0]), "+f"(o[12][1]), "+f"(o[12][2]), "+f"(o[12][3]), "+f"(o[13][0]), "+f"(o[13][1]), "+f"(o[13][2]), "+f"(o[13][3]), "+f"(o[14][0]), "+f"(o[14][1]), "+f"(o[14][2]), "+f"(o[14][3]), "+f"(o[15][0]), "+f"(o[15][1]), "+f"(o[15][2]), "+f"(o[15][3]), "+f"(o[16][0]), "+f"(o[16][1]), "+f"(o[16][2]), "+f"(o[16][3]), "+f"(o[17][0]), "+f"(o[17][1]), "+f"(o[17][2]), "+f"(o[17][3]), "+f"(o[18][0]), "+f"(o[18][1]), "+f"(o[18][2]), "+f"(o[18][3]), "+f"(o[19][0]), "+f"(o[19][1]), "+f"(o[19][2]), "+f"(o[19][3]), "+f"(o[20][0]), "+f"(o[20][1]), "+f"(o[20][2]), "+f"(o[20][3]), "+f"(o[21][0]), "+f"(o[21][1]), "+f"(o[21][2]), "+f"(o[21][3]), "+f"(o[22][0]), "+f"(o[22][1]), "+f"(o[22][2]), "+f"(o[22][3]), "+f"(o[23][0]), "+f"(o[23][1]), "+f"(o[23][2]), "+f"(o[23][3])
      : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "l"(v), "r"(accumulate));
}

// A tile that is needed: its first key, and what is to be known of it.
struct Note {
  static constexpr uint32_t kNone = TileFound::kNone, kFirst = 1 << 8, kStop = 1 << 9, kSecond = 1 << 10, kOpens = 1 << 12;

  int32_t j;
  // Bit g: no pair of warpgroup g is excluded, and of kNone << g: all are. kFirst: of the block's tiles. kStop: there is none.
  // kOpens: of those that a warpgroup sees something of, known to itself. kSecond: the block's queries lie in the second of
  // two places. From bit 16 on, the tile's place in the rings.
  uint32_t flags;

  __device__ __forceinline__ uint32_t stage() const { return flags >> 16; }
  __device__ __forceinline__ uint32_t query_stage() const { return kQueryStages == 1 ? 0 : flags / kSecond % 2; }
  static constexpr uint32_t kScreened = 1 << 11;  // values of the block's tiles are screened
  // Screened, and of a warpgroup that sees some of it, some pairs are excluded.
  __device__ __forceinline__ bool mixed() const {
    return (flags & kScreened) != 0 && ((flags | flags / kNone) & kAllGroups) != kAllGroups;
  }
  // That of the tile before, or of the one before that.
  __device__ __forceinline__ uint32_t stage_before(bool skipped) const {
    return kStages == 2 ? stage() ^ 1 ^ skipped : (stage() + kStages - 1 - skipped) % kStages;
  }
  // Whether it is the first of its block that is multiplied.
  __device__ __forceinline__ bool opens() const { return (flags & kOpens) != 0; }
  // Whether another block begins with it, or there is none.
  __device__ __forceinline__ bool is_another() const { return (flags & (kFirst | kStop)) != 0; }
  __device__ __forceinline__ bool is_stop() const { return (flags & kStop) != 0; }
};
// A note is read until the values of its tile are done with: those of the tile kBehind before one whose keys find room are.
constexpr int kBehind = kStages + 2;
static_assert(kPlanned > kBehind, "some are scheduled ahead");

// And whose keys they are.
struct Planned {
  Note note;
  int32_t hk, b;
};

// What is where in shared memory.
class Shared {
 public:
  static constexpr int kKeys = kQueryStages * kGroups * kQBytes, kValues = kKeys + kStages * kKBytes;
  static constexpr int kBarriers = kValues + kStages * kVBytes;
  static constexpr int kPlanBarriers = kBarriers + 2 * Ring<kStages>::kBytes + Ring<kQueryStages * kGroups>::kBytes;
  static constexpr int kPlans = kPlanBarriers + Ring<kPlanned>::kBytes;
  static constexpr int kClean = kPlans + 16 * kPlanned;
  static constexpr int kAgain = kClean + Ring<kStages>::kBytes + 16 * kStages;
  // Blocks of rows that are noted. While one is finished or mended, the keys of the next block's first tile may have been
  // given back, and as many tiles after it scheduled as there are plans.
  static constexpr int kBlocks = 2 * kPlanned;
  static constexpr int kBlockNotes = kAgain + 16;
  static constexpr int kStaging = (kBlockNotes + 16 * kBlocks + 127) / 128 * 128;  // as swizzles ask for
  static constexpr int kBytes = kStaging + 4 * kGroups * kStagedSlabs * kStagedBytes;
  static_assert(kClean % 16 == 0 && kBlockNotes % 16 == 0 && kBlocks <= 32, "vectors, and bits of a word");

  __device__ __forceinline__ explicit Shared(uint32_t start) : start_(start) {}

  __device__ __forceinline__ uint32_t queries(uint32_t place) const { return start_ + place * kQBytes; }
  __device__ __forceinline__ uint32_t keys(uint32_t stage) const { return start_ + kKeys + stage * kKBytes; }
  __device__ __forceinline__ uint32_t values(uint32_t stage) const { return start_ + kValues + stage * kVBytes; }

  // The rings of tiles; that of queries has a place for each warpgroup, in each of its stages.
  __device__ __forceinline__ Ring<kStages> of_keys() const { return {start_ + kBarriers}; }
  __device__ __forceinline__ Ring<kStages> of_values() const { return {start_ + kBarriers + Ring<kStages>::kBytes}; }
  __device__ __forceinline__ Ring<kQueryStages * kGroups> of_queries() const {
    return {start_ + kBarriers + 2 * Ring<kStages>::kBytes};
  }
  __device__ __forceinline__ static uint32_t place_of_queries(uint32_t stage, int group) { return stage * kGroups + group; }
  __device__ __forceinline__ Ring<kPlanned> of_plans() const { return {start_ + kPlanBarriers}; }
  // Of a tile of values of which the mask excludes some pairs: the barriers that say they have been seen to, and that the
  // words are read, and whether some were no finite numbers, a word of each screener.
  __device__ __forceinline__ Ring<kStages> of_clean() const { return {start_ + kClean}; }
  __device__ __forceinline__ uint32_t found(uint32_t stage) const {
    return start_ + kClean + Ring<kStages>::kBytes + 16 * stage;
  }
  // Blocks of rows that are to be multiplied again, with values screened: a bit of each. By one lane.
  __device__ __forceinline__ void ask_again(uint32_t number) const { ptx::or_shared(start_ + kAgain, 1u << number); }
  __device__ __forceinline__ uint32_t take_again() const { return ptx::exchange_shared(start_ + kAgain, 0); }
  __device__ __forceinline__ void forget_again() const { ptx::st_shared_4(start_ + kAgain, 0); }
  // By all warps but the feeder's, when there is nothing left to be done but those: they meet once, and where there are some,
  // once more when all have read it.
  __device__ __forceinline__ uint32_t end() const { return start_ + kAgain + 8; }
  __device__ __forceinline__ bool another_round() const {
    meet(0);
    const bool more = ptx::ld_shared_4(start_ + kAgain) != 0;
    if (more) meet(1);
    return more;
  }
  // Each thread for itself: they come here from different places, which barriers of the block are not for.
  __device__ __forceinline__ void meet(uint32_t parity) const {
    ptx::mbarrier_arrive(end());
    ptx::mbarrier_wait(end(), parity);
    __syncwarp();
  }

  __device__ __forceinline__ void plan(uint32_t number, const Planned& tile) const {
    ptx::st_shared_16(start_ + kPlans + 16 * number, make_uint4(tile.note.j, tile.note.flags, tile.hk, tile.b));
  }
  __device__ __forceinline__ Planned plan(uint32_t number) const {
    const uint4 x = ptx::ld_shared_16(start_ + kPlans + 16 * number);
    return { {static_cast<int>(x.x), x.y}, static_cast<int>(x.z), static_cast<int>(x.w)};
  }
  // By a warp.
  __device__ __forceinline__ Note note(uint32_t number) const {
    const uint64_t x = ptx::ld_shared_8(start_ + kPlans + 16 * number);
    return {static_cast<int32_t>(x), __shfl_sync(~0u, static_cast<uint32_t>(x >> 32), 0)};
  }

  // Where a warp that multiplies has its rows of o.
  __device__ __forceinline__ uint32_t staging(int warp) const {
    return start_ + kStaging + warp * kStagedSlabs * kStagedBytes;
  }

  __device__ __forceinline__ void note_block(uint32_t number, const Block& block) const {
    ptx::st_shared_16(start_ + kBlockNotes + 16 * number, make_uint4(block.b, block.h, block.i, block.rows));
  }
  __device__ __forceinline__ Block block(uint32_t number) const {
    const uint4 x = ptx::ld_shared_16(start_ + kBlockNotes + 16 * number);
    return {static_cast<int>(x.x), static_cast<int>(x.y), static_cast<int>(x.z), static_cast<int>(x.w), 0};
  }

 private:
  uint32_t start_;
};
static_assert(Shared::kBytes == 164608, "what the launch asks for");

// The blocks of query rows that there are, of a head and of all.
__device__ __forceinline__ uint32_t row_blocks(const ForwardParams& p) {
  return (static_cast<uint32_t>(p.shape.q_len) + kTileQ - 1) / kTileQ;
}
__device__ __forceinline__ uint32_t works(const ForwardParams& p) {
  return row_blocks(p) * static_cast<uint32_t>(p.shape.heads) * static_cast<uint32_t>(p.shape.batch);
}
// One of them. Within sections of heads whose keys and values the second-level cache holds, the last rows, which mostly see
// most, come first: what is left at the end is short.
__device__ __forceinline__ Block block_of(const ForwardParams& p, uint32_t work) {
  constexpr uint32_t kCache = 33554432, kKeyBytes = 2 * (kHeadDim + kValueDim);
  uint32_t heads = static_cast<uint32_t>(p.shape.heads), blocks = row_blocks(p);
  ptx::hide(heads), ptx::hide(blocks);  // what divides by them is not to be kept in registers from block to block
  const uint32_t all = heads * static_cast<uint32_t>(p.shape.batch), group = heads / static_cast<uint32_t>(p.shape.kv_heads);
  // A section of short rows has blocks for two rounds: what comes from memory is read beside what the cache has.
  const uint32_t keys = greatest(static_cast<uint32_t>(p.shape.kv_len), 1u);
  const uint32_t fit = least(kCache / kKeyBytes / keys, 2 * gridDim.x / blocks / group);
  // Sections are as large as one another: the last one too ends with what is short.
  const uint32_t held = greatest(least(fit, all / group), 1u);
  const uint32_t sections = (all / group + held - 1) / held, most = (all / group + sections - 1) / sections * group;
  const uint32_t section = work / (blocks * most), first = section * most;
  const uint32_t rest = work - first * blocks, some = all - first < most ? all - first : most;
  const uint32_t head = first + rest % some;
  const int32_t i = static_cast<int32_t>(blocks - 1 - rest / some) * kTileQ;
  const int32_t left = static_cast<int32_t>(p.shape.q_len) - i, rows = left < kTileQ ? left : kTileQ;
  return {static_cast<int32_t>(head / heads), static_cast<int32_t>(head % heads), i, rows, 0};
}

// Blocks are drawn: whoever is free takes the next. Each block of threads draws until there is none, once more than it
// finds one: as often together as there are blocks, by which time the count is at 0 again.
__device__ __forceinline__ uint32_t next_work(const ForwardParams& p, uint32_t work) {
  if (p.drawn == nullptr) return work + gridDim.x;
  uint32_t drawn = 0;
  if (lane_id() == 0) drawn = atomicInc(p.drawn, works(p) - 1);
  return gridDim.x + __shfl_sync(~0u, drawn, 0);
}
__device__ __forceinline__ int32_t key_head(const ForwardParams& p, int32_t h) {
  int32_t heads = static_cast<int32_t>(p.shape.heads);
  ptx::hide(heads);  // as in block_of
  return h / (heads / static_cast<int32_t>(p.shape.kv_heads));
}

// What makes scores exponents of weights.
__device__ __forceinline__ Scale scale_of(const ForwardParams& p) { return {p.unit, 1.0f, (kRoom + static_cast<float>(32 - __clz(static_cast<int>(p.shape.kv_len))))}; }

// What a lane's weights of a tile may sum to.
__device__ __forceinline__ float most_of(const ForwardParams& p) { return p.share; }

// The part of a block that a warpgroup has, and a warp.
__device__ __forceinline__ Block part_of(Block at, int first, int rows) {
  at.rows = at.rows - first < rows ? at.rows - first : rows;
  at.i += first;
  return at;
}

// The tile at key j.
__device__ __forceinline__ Block at_key(Block at, int j) {
  at.j = j;
  return at;
}

// Of a block's pairs, what the mask admits.
__device__ __forceinline__ Tri mask_test(const ForwardParams& p, const Block& at) {
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span32 q = Span32{at.i, at.i + at.rows - 1} + Span32{kv_len - q_len};
  const Span32 kv{at.j, least(at.j + at.keys, kv_len) - 1};
  bool admits = false;
  {
    Pairs32 pairs(q, kv);
    pairs.difference.at_least(0);
    if (pairs.narrow()) admits = true;
  }
  if (!admits) return Tri::kNone;
  bool refuses = false;
  {
    Pairs32 pairs(q, kv);
    pairs.difference.at_most(-1);
    if (pairs.narrow()) refuses = true;
  }
  return refuses ? Tri::kSome : Tri::kAll;
}

// The same, and no key past the end.
__device__ __forceinline__ Tri tile_test(const ForwardParams& p, const Block& at) {
  if (at.j >= p.shape.kv_len) return Tri::kNone;
  const Tri admitted = mask_test(p, at);
  return at.j + at.keys > p.shape.kv_len ? admitted & Tri::kSome : admitted;
}

// What the mask admits of a tile's pairs with a warpgroup's rows. Lanes of a warp may read params together: of a mask with
// params all ask.
__device__ __forceinline__ Tri group_test(const ForwardParams& p, const Block& at, int tile, int group) {
  const Block part = part_of(at, 64 * group, 64);
  const Tri admitted = tile_test(p, at_key(part, tile * kTileKv));
  return part.rows > 0 ? admitted : Tri::kNone;
}

// The keys below a limit that the rows of a block may admit.
__device__ __forceinline__ KeyRange keys_below(const ForwardParams& p, const Block& at, int limit) {
  const auto between = [limit](int32_t first, int32_t last) { return KeyRange::between(first, last, limit); };
  const int32_t q_len = static_cast<int32_t>(p.shape.q_len);
  const int32_t kv_len = static_cast<int32_t>(p.shape.kv_len);
  const Span32 q = Span32{at.i, at.i + at.rows - 1} + Span32{kv_len - q_len};
  return between(0, least(kv_len, q.hi + 1));
}

// The tiles of a block of rows, for which the mask is asked when they are taken.
__device__ __forceinline__ auto asked_tiles(const ForwardParams& p, const Block& block) {
  const auto below = [&p, &block](int tile) {
    const KeyRange keys = keys_below(p, block, tile * kTileKv);
    return KeyRange{keys.first / kTileKv, (keys.last + kTileKv - 1) / kTileKv};
  };
  const auto test = [&p, &block](int tile, int group) { return group_test(p, block, tile, group); };
  return ask_tiles<kGroups>((static_cast<int>(p.shape.kv_len) + kTileKv - 1) / kTileKv, below, test);
}

// A warp that says which tiles are needed, in which order, a few ahead of the copies: to draw blocks and to learn what the
// mask admits takes longer than a tile may. No other warp reads what the kernel before this one has left.
class Scheduler {
 public:
  __device__ __forceinline__ Scheduler(const ForwardParams& p, const Shared& shared) : p_(p), shared_(shared) {
  }

  __device__ __forceinline__ void run() {
    const ForwardParams& p = p_;
    for (;; block_.next()) {
      shared_.of_plans().wait_empty(plans_);  // then there is a place for the block too
      Block block;
      uint32_t flags = 0;
      // Those that are to be multiplied again come first: there is a bit for each block that may be under way, not more.
      if (again_ == 0) again_ = take_again();
      if (again_ != 0) {
        block = shared_.block(oldest_again());
        flags = Note::kScreened;
      } else {
        // No sooner than it is needed: others may be free before. And no more when there was none.
        if (begun_ && work_ < works(p)) work_ = next_work(p, work_);
        begun_ = true;
        if (work_ >= works(p)) break;
        block = block_of(p, work_);
      }
      const int32_t hk = key_head(p, block.h);
      flags |= block_.stage() % kQueryStages * Note::kSecond;
      auto tiles = asked_tiles(p, block);
      if (lane_id() == 0) shared_.note_block(block_.stage(), block);
      for (flags |= Note::kFirst;; flags &= ~Note::kFirst) {
        TileFound found = tiles.take();
        if (found.tile < 0) {
          if ((flags & Note::kFirst) == 0) break;
          // Rows that see no key at all visit a tile all the same, one past the end, which no warpgroup sees anything of.
          found = {static_cast<int>(p.shape.kv_len) / kTileKv + 1, kSeenByNone};
        }
        shared_.of_plans().wait_empty(plans_);
        put(found.tile * kTileKv, found.flags | flags, hk, block.b);
        tiles_.next();
      }
    }
    stop();
  }
  __device__ __forceinline__ void stop() {
    shared_.of_plans().wait_empty(plans_);
    put(0, Note::kStop, 0, 0);
  }

 private:
  __device__ __forceinline__ void put(int32_t j, uint32_t flags, int32_t hk, int32_t b) {
    if (lane_id() == 0) {
      shared_.plan(plans_.stage(), { {j, flags | tiles_.stage() << 16}, hk, b});
      ptx::mbarrier_arrive(shared_.of_plans().full(plans_.stage()));
    }
    __syncwarp();
    plans_.next();
  }
  __device__ __forceinline__ uint32_t take_again() const {
    uint32_t taken = 0;
    if (lane_id() == 0) taken = shared_.take_again();
    return __shfl_sync(~0u, taken, 0);
  }
  // Of the blocks in again_ the one that was noted first: its place is needed soonest.
  __device__ __forceinline__ uint32_t oldest_again() {
    Turn<Shared::kBlocks> at = block_;
#pragma unroll 1
    while ((again_ >> at.stage() & 1) == 0) at.next();
    again_ &= ~(1u << at.stage());
    return at.stage();
  }

  const ForwardParams& p_;
  const Shared shared_;
  uint32_t work_ = blockIdx.x;
  bool begun_ = false;
  Turn<kPlanned> plans_;
  Turn<kStages> tiles_;
  Turn<Shared::kBlocks> block_;
  uint32_t again_ = 0;  // blocks to be multiplied again, a bit of each
};

// A thread that has planned tiles copied.
class Feeder {
 public:
  __device__ __forceinline__ Feeder(const ptx::TensorMap& q, const ptx::TensorMap& k, const ptx::TensorMap& v,
                                    const Shared& shared)
      : q_(q), k_(k), v_(v), shared_(shared) {}

  // The next tile's keys are needed before this one's values, but not its queries, which wait for the last ones.
  __device__ __forceinline__ void run() {
    Planned tile = take(), before{};
    // Each round ends with a stop, and all of them with one more.
    for (; !tile.note.is_stop(); tile = take()) {
      send_keys(tile);
      send_queries(tile);
      for (before = tile, tile = take(); !tile.note.is_stop(); before = tile, tile = take()) {
        send_keys(tile);
        send_values(before);
        if ((tile.note.flags & Note::kFirst) != 0) send_queries(tile);
      }
      send_values(before);
    // For another round: what all have read by then, and what says that there is no tile.
    for (; sent_ >= 0; --sent_) {
      ptx::mbarrier_arrive(shared_.of_plans().empty(read_.stage()));
      read_.next();
    }
    sent_ = 0;
    }
  }

 private:
  __device__ __forceinline__ Planned take() {
    shared_.of_plans().wait_full(plans_);
    const Planned tile = shared_.plan(plans_.stage());
    plans_.next();
    return tile;
  }

  __device__ __forceinline__ void send_keys(const Planned& tile) {
    const uint32_t full = shared_.of_keys().full(keys_.stage());
    shared_.of_keys().wait_empty(keys_);
    if (sent_ < kBehind) {
      ++sent_;
    } else {
      ptx::mbarrier_arrive(shared_.of_plans().empty(read_.stage()));
      read_.next();
    }
    ptx::mbarrier_arrive_expect(full, kKBytes);
    copy_rows<kHeadDim>(shared_.keys(keys_.stage()), kTileKv, k_, full, tile.note.j, tile.hk, tile.b);
    keys_.next();
  }

  __device__ __forceinline__ void send_values(const Planned& tile) {
    const uint32_t full = shared_.of_values().full(values_.stage());
    shared_.of_values().wait_empty(values_);
    ptx::mbarrier_arrive_expect(full, kVBytes);
    copy_rows<kValueDim>(shared_.values(values_.stage()), kTileKv, v_, full, tile.note.j, tile.hk, tile.b);
    values_.next();
  }

  __device__ __forceinline__ void send_queries(const Planned& tile) {
    const Block block = shared_.block(block_.stage());
#pragma unroll 1
    for (int group = 0; group < kGroups; ++group) {
      const uint32_t place = Shared::place_of_queries(queries_.stage(), group), full = shared_.of_queries().full(place);
      ptx::mbarrier_wait(shared_.of_queries().empty(place), queries_.parity() ^ 1);
      ptx::mbarrier_arrive_expect(full, kQBytes);
      copy_rows<kHeadDim>(shared_.queries(place), 64, q_, full, block.i + 64 * group, block.h, tile.b);
    }
    queries_.next();
    block_.next();
  }

  const ptx::TensorMap &q_, &k_, &v_;
  const Shared shared_;
  Turn<kPlanned> plans_, read_;  // those that all have
  int sent_ = 0;                 // tiles of keys, up to kBehind
  Turn<kStages> keys_, values_;
  Turn<kQueryStages> queries_;
  Turn<Shared::kBlocks> block_;
};

// A warp that looks at values, where the mask excludes pairs, of a block whose sums were no finite numbers: such values must
// not meet weights, since 0 times NaN is NaN. It puts zeros in their place, in its part of the tile.
class Screener {
 public:
  __device__ __forceinline__ Screener(const Shared& shared, int number) : shared_(shared), number_(number) {}

  __device__ __forceinline__ void run() {
    for (bool stop = false; !stop; plans_.next()) {
      shared_.of_plans().wait_full(plans_);
      const Note note = shared_.note(plans_.stage());
      stop = note.is_stop();
      if (!stop) see_to(note);
    }
  }

 private:
  __device__ __forceinline__ void see_to(const Note& note) {
    shared_.of_values().wait_full(values_);
    if (note.mixed()) {
      const bool found =
          remove_nonfinite<Element>(kVBytes / 16, 32 * number_ + lane_id(), 32 * kScreeners,
                                    [values = shared_.values(values_.stage())](int at) { return values + 16 * at; });
      if (found) ptx::fence_proxy();  // products read them by another way
      const bool any = __any_sync(~0u, found);
      shared_.of_clean().wait_empty(mixed_);
      __syncwarp();
      if (lane_id() == 0) {
        ptx::st_shared_4(shared_.found(mixed_.stage()) + 4 * number_, any);
        ptx::mbarrier_arrive(shared_.of_clean().full(mixed_.stage()));
      }
      mixed_.next();
    }
    __syncwarp();
    if (lane_id() == 0) ptx::mbarrier_arrive(shared_.of_values().empty(values_.stage()));
    values_.next();
  }

  const Shared shared_;
  const int number_;
  Turn<kPlanned> plans_;
  Turn<kStages> values_, mixed_;
};

// The score of one pair.
__device__ __forceinline__ float score_of(const ForwardParams& p, const Block& at, int row, int column) {
  const auto q_row = RowsOf<Element::Type>::of(p.q, at.b, at.h), k_row = RowsOf<Element::Type>::of(p.k, at.b, key_head(p, at.h));
  const auto* const a = reinterpret_cast<const uint16_t*>(q_row.data + (at.i + row) * q_row.stride);
  const auto* const c = reinterpret_cast<const uint16_t*>(k_row.data + (at.j + column) * k_row.stride);
  float score = 0.0f;
#pragma unroll 1
  for (int d = 0; d < kHeadDim; ++d)
    score = fmaf(Element::value(a[d * q_row.stride_d]), Element::value(c[d * k_row.stride_d]), score);
  const float s = score * p.scale;
  return s;
}

// Keys of a block's tiles that had values which were no finite numbers.
struct KeysToMend {
  int32_t first = 0x7fffffff, last = 0;
};

// Adds to o what values that are no finite numbers make of it, for a warp's rows and the keys of a range. A product with
// such a value does not depend on how large a weight is, but on whether it is 0: on whether the score is -inf. Each lane
// has columns of its own.
__device__ __forceinline__ void mend_rows(const ForwardParams& p, const Block& part, const KeysToMend& keys) {
  __syncwarp();  // the rows are written
  const auto v = RowsOf<Element::Type>::of(p.v, part.b, key_head(p, part.h)), o = RowsOf<Element::Type>::of(p.o, part.b, part.h);
  const float* const lse = p.lse + (static_cast<int64_t>(part.b) * p.shape.heads + part.h) * p.shape.q_len + part.i;
#pragma unroll 1
  for (int j = keys.first; j < keys.last && j < p.shape.kv_len; ++j)
#pragma unroll 1
    for (int d = lane_id(); d < kValueDim; d += 32) {
      const uint16_t value = reinterpret_cast<const uint16_t*>(v.data + j * v.stride)[d * v.stride_d];
      if (Element::finite(value)) continue;
#pragma unroll 1
      for (int row = 0; row < part.rows; ++row) {
        if (lse[row] == -kInfinity || !admits(p, at_key(part, j), row, 0)) continue;
        const float weight = score_of(p, at_key(part, j), row, 0) == -kInfinity || !keeps_pair(p.dropout, part.b * p.shape.heads + part.h, part.i + row, j) ? 0.0f : 1.0f;
        auto& sum = reinterpret_cast<uint16_t*>(o.data + (part.i + row) * o.stride)[d * o.stride_d];
        sum = static_cast<uint16_t>(Element::pack(Element::value(sum) + weight * Element::value(value), 0.0f));
      }
    }
}

// Divides the sums of a warp's rows by the totals, and writes o and lse. Whether sums were no finite numbers.
__device__ __forceinline__ bool write_rows(const ForwardParams& p, const Block& part, const RowSoftmax& softmax, Sums& o,
                                           uint32_t staging) {
  const int lane = lane_id();
  float* const lse = p.lse + (static_cast<int64_t>(part.b) * p.shape.heads + part.h) * p.shape.q_len + part.i;
  const float total[2] = {sum_of_row(softmax.total[0]), sum_of_row(softmax.total[1])};
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    factor[half] = total[half] == 0.0f ? 0.0f : ptx::rcp(total[half]);
    if (lane % 4 == 0 && lane / 4 + 8 * half < part.rows)
      lse[lane / 4 + 8 * half] =
          total[half] == 0.0f ? -kInfinity : (softmax.reference[half] * 1.0f + log2f(total[half])) * kLn2;
  }
  const auto to = RowsOf<Element::Type>::of(p.o, part.b, part.h);
  const float share[2] = {factor[0] * p.dropout.factor, factor[1] * p.dropout.factor};
  bool lost = false;
  for (bool again = false;; again = true) {
    const bool finite = store_fragments<Element, kStagedSlabs>(to, part.i, part.rows, staging, o, share);
    if (again || __all_sync(~0u, finite)) return lost;
    // Seldom: sums are looked at, and all is written once more.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lost |= total[half] != 0.0f && !all_finite(o, half);
      // A row without keys is zeros, and so is one that all are shut out of, even if their values are no numbers.
      if (total[half] == 0.0f) clear(o, half);
      limit_means<Element>(o, half, factor[half]);
    }
    lost = __any_sync(~0u, lost);
    __syncwarp();
  }
}

// A warpgroup that multiplies: scores of the next tile beside sums of this one, of whichever blocks they are.
class Multiplier {
 public:
  __device__ __forceinline__ Multiplier(const ForwardParams& p, const Shared& shared, int group)
      : p_(p), shared_(shared), group_(group) {}

  __device__ __forceinline__ void run() {
    const uint32_t whole = 1u << group_, none = Note::kNone << group_;
    if (group_ == kGroups - 1) pass_turn();
    Scores x;
    Sums o;
    RowSoftmax softmax;
    uint32_t weights[2 * kKeyTiles];
    Note now{0, none | Note::kStop}, next = peek();  // no tile has been before
    for (Note after{};; now = next, next = after) {
      plans_.next();
      next.flags = __shfl_sync(~0u, next.flags, 0);  // they are one for all lanes, which the compiler forgets in the loop
      const bool pending = (now.flags & none) == 0;  // weights of `now`, whose sums are to be started
      bool skipped = false;
      // A tile that these rows see nothing of, between two that they see, is passed over here: else products would pause.
      if (pending && (next.flags & (none | Note::kStop | Note::kScreened)) == none) {
        after = peek();
        if ((after.flags & (none | Note::kStop | Note::kFirst)) == 0) {
          skipped = true;
      ptx::sync_named<256>(1 + group_);
        pass_turn();
          shared_.of_keys().wait_full(keys_);
          release_keys();
          plans_.next();
          next = {after.j, after.flags | (next.flags & Note::kFirst)};
        }
      }
      ptx::sync_named<256>(1 + group_);
      const bool first = (next.flags & Note::kFirst) != 0;
      if (first) next.flags |= Note::kOpens;
      if (pending && (next.flags & (none | Note::kStop)) == 0
        && !mend_due_
      ) {
        start_scores(next, first, x);
        after = peek();  // while products are under way
        // A tile that is whole for these rows, and not its block's first, which makes the reference.
        const bool usual = softmax.settled() && (next.flags & (whole | Note::kFirst)) == whole;
        start_sums(now, next.stage_before(skipped), weights, o);
      pass_turn();
        ptx::wait_for_products<1>();
        ptx::settle(x[0]);
        if (first) block_.next();
        if (usual) {
          // One row after the other: the sums are waited for, and the first is packed, beside the second's exponentials.
          float sums[2];
          sums[0] = softmax.weigh<0>(x[0], scale_of(p_));
          ptx::compute_here(sums[0], -p_.unit, shared_.keys(0));
          end_sums(o);
          pack<0>(weights, x);
          ptx::compute_later(softmax.reference[1], sums[0], -p_.unit, shared_.keys(0));
          sums[1] = softmax.weigh<1>(x[0], scale_of(p_));
          pack<1>(weights, x);
          if (!softmax.take(sums, most_of(p_), scale_of(p_))) weigh_anew(softmax, x, sums, weights, o, next);
          drop(weights, next);
          release_keys(next, after);
        } else {
          release_keys(next, after);
          const RowSoftmax before = softmax;
          if (first) start(softmax);
          exclude(x, next);
          softmax.weigh_by_largest(x[0], scale_of(p_), own_barrier(), [&] {
            end_sums(o);
            pack<0>(weights, x);
          });
          pack<1>(weights, x);
          drop(weights, next);
          if (first) {
            finish(block_.before(), now, before, o);
            mend_due_ = mend_.last != 0;  // by the next round: its loops are not to stand beside products
          } else if (softmax.grown()) {
            softmax.rescale(o);
          }
        }
        if (skipped) {
          shared_.of_values().wait_full(values_);
          release_values();
        }
      } else {
        // Beginnings and ends, and tiles that these rows see nothing of: the turn is given away, what there is to be done is
        // done one after the other.
        pass_turn();
        if (mend_due_) mend(block_.before());
        mend_due_ = false;
        if (pending) {
          start_sums(now, next.stage_before(skipped), weights, o);
          end_sums(o);
        }
        if (next.is_another()) {
          if ((now.flags & Note::kStop) == 0) {
            finish(block_.stage(), now, softmax, o);
            if (mend_.last != 0) mend(block_.stage());
            block_.next();
          }
          if (next.is_stop()) break;
          start(softmax);
        }
        after = peek();
        if ((next.flags & none) == 0) {
          start_scores(next, next.opens(), x);
          ptx::wait_for_products<0>();
          ptx::settle(x[0]);
          release_keys(next, after);
          exclude(x, next);
          softmax.weigh_by_largest(x[0], scale_of(p_), own_barrier(), [] {});
          if (!next.opens() && softmax.grown()) softmax.rescale(o);
          pack(weights, x);
          drop(weights, next);
        } else {
          shared_.of_keys().wait_full(keys_);
          if (next.opens()) {
            if (after.is_another()) {
              see_nothing(o);
            } else {
              after.flags |= Note::kOpens;
            }
          }
          release_keys(next, after);
          shared_.of_values().wait_full(values_);
          release_values();
          if (next.mixed()) pass_mixed();
        }
      }
    }
    if (group_ == 0) ptx::sync_named<256>(1);  // whose turn it would be
  }

 private:
  // Where this warpgroup's four warps meet; those before are for turns.
  __device__ __forceinline__ int own_barrier() const { return 1 + kGroups + group_; }

  // Warpgroups take turns in starting products: while one multiplies, another has its exponentials computed.
  __device__ __forceinline__ void pass_turn() const { ptx::arrive_named<256>(1 + (group_ + 1) % kGroups); }

  // Where the queries of a tile's block are.
  __device__ __forceinline__ uint32_t place_of_queries(const Note& note) const {
    return Shared::place_of_queries(note.query_stage(), group_);
  }

  // The next tile that is planned.
  __device__ __forceinline__ Note peek() const {
    shared_.of_plans().wait_full(plans_);
    return shared_.note(plans_.stage());
  }

  // These rows see none of a block's tiles: zeros.
  __device__ __forceinline__ void see_nothing(Sums& o) {
    ptx::mbarrier_wait(shared_.of_queries().full(Shared::place_of_queries(queries_.stage(), group_)), queries_.parity());
    queries_.next();
#pragma unroll
    for (int n = 0; n < kValueTiles; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) o[n][e] = 0.0f;
  }

  // x = q · k of a tile, the first of its block that is multiplied or not. Where it lies is told by its note, which the
  // compiler knows to be one for all lanes: it is where `keys_` stands too.
  __device__ __forceinline__ void start_scores(const Note& note, bool opens, Scores& x) {
    const uint32_t place = place_of_queries(note), queries = shared_.queries(place), keys = shared_.keys(note.stage());
    shared_.of_keys().wait_full(keys_);
    if (opens) {
      ptx::mbarrier_wait(shared_.of_queries().full(place), queries_.parity());
      queries_.next();
      // The largest score of a row is that of the largest q · k: of a scale below kLeastUnit, q takes the sign and what
      // the unit has too much.
      if (!(p_.scale >= kLeastUnit)) {
        multiply_elements<Element>(kQBytes / 16, static_cast<int>(threadIdx.x % 128), 128,
                                   p_.scale <= -kLeastUnit ? -1.0f : p_.scale / kLeastUnit,
                                   [queries](int at) { return queries + 16 * at; });
        ptx::fence_proxy();  // products read them by another way
        ptx::sync_named<128>(own_barrier());
      }
    }
    const uint64_t a = ptx::rows_operand(queries), b = ptx::rows_operand(keys);
    ptx::fence_products();
#pragma unroll
    for (int d = 0; d < (kHeadDim + 15) / 16; ++d)
      multiply_keys(x[0], a + ((d / 4 * 64 * kSlabBytes + d % 4 * 32) >> 4),
                    b + ((d / 4 * kTileKv * kSlabBytes + d % 4 * 32) >> 4), d > 0);
    ptx::commit_products();
  }

  // o (+)= weights · v of the tile whose weights those are, which lies in `stage`.
  __device__ __forceinline__ void start_sums(const Note& note, uint32_t stage, const uint32_t (&weights)[2 * kKeyTiles],
                                             Sums& o) {
    shared_.of_values().wait_full(values_);
    if (note.mixed()) {
      shared_.of_clean().wait_full(mixed_);
      if (__any_sync(~0u, ptx::ld_shared_8_if(lane_id() == 0, shared_.found(mixed_.stage())) != 0)) {
        mend_.first = note.j;
        mend_.last = mend_.last < note.j + kTileKv ? note.j + kTileKv : mend_.last;
      }
      pass_mixed();
    }
    const uint64_t v = ptx::columns_operand(shared_.values(stage), kTileKv * kSlabBytes);
    ptx::fence_products();
#pragma unroll
    for (int n = 0; n < kTileKv / 16; ++n)
      multiply_values(o, weights + 4 * n, v + n * (16 * kSlabBytes >> 4), n > 0 || !note.opens());
    ptx::commit_products();
  }

  __device__ __forceinline__ void release_keys() {
    __syncwarp();
    ptx::mbarrier_arrive_if(lane_id() == 0, shared_.of_keys().empty(keys_.stage()));
    keys_.next();
  }
  // Of a tile; if the one after it is another block's, the queries too.
  __device__ __forceinline__ void release_keys(const Note& note, const Note& after) {
    release_keys();
    ptx::mbarrier_arrive_if(after.is_another() && lane_id() == 0, shared_.of_queries().empty(place_of_queries(note)));
  }
  __device__ __forceinline__ void end_sums(Sums& o) {
    ptx::wait_for_products<0>();
    ptx::settle(o);
    release_values();
  }
  __device__ __forceinline__ void release_values() {
    __syncwarp();
    ptx::mbarrier_arrive_if(lane_id() == 0, shared_.of_values().empty(values_.stage()));
    values_.next();
  }

  __device__ __forceinline__ void start(RowSoftmax& softmax) const {
    softmax.start();
  }

  __device__ __forceinline__ void exclude(Scores& x, const Note& note) const {
    if ((note.flags >> group_ & 1) == 0) exclude_pairs_unrolled(x, pair_test(p_, part_at(note)));
  }

  // Weights that their references do not suit. Where they have overflowed, the warp multiplies its rows with the keys again.
  __device__ __forceinline__ void weigh_anew(RowSoftmax& softmax, Scores& x, const float (&sums)[2],
                                             uint32_t (&weights)[2 * kKeyTiles], Sums& o, const Note& next) const {
    if (!softmax.raise(x[0], sums, most_of(p_), scale_of(p_))) {
      multiply_by_warp<Element, kHeadDim>(x[0], shared_.queries(place_of_queries(next)) + warp_id() % 4 * 16 * kSlabBytes, 64 * kSlabBytes,
                                          shared_.keys(keys_.stage()), kTileKv * kSlabBytes);
      softmax.weigh_by_largest(x[0], scale_of(p_));
    }
    if (softmax.grown()) softmax.rescale(o);
    pack(weights, x);
  }

  template <int kHalf>
  __device__ __forceinline__ void pack(uint32_t (&weights)[2 * kKeyTiles], const Scores& x) const {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) weights[2 * n + kHalf] = Element::pack(x[0][n][2 * kHalf], x[0][n][2 * kHalf + 1]);
  }
  __device__ __forceinline__ void pack(uint32_t (&weights)[2 * kKeyTiles], const Scores& x) const {
    pack<0>(weights, x);
    pack<1>(weights, x);
  }

  // The warp's rows of a block, and the pairs that the scores are of.
  __device__ __forceinline__ Block part_of_block(uint32_t number) const {
    return part_of(shared_.block(number), 64 * group_ + warp_id() % 4 * 16, 16);
  }
  __device__ __forceinline__ Block part_at(const Note& note) const {
    Block part = part_of_block(block_.stage());
    part.j = note.j;
    return part;
  }

  // Weights of a tile's pairs that dropout takes away from values. Totals have them.
  __device__ __forceinline__ void drop(uint32_t (&weights)[2 * kKeyTiles], const Note& note) const {
    if (p_.dropout.threshold == 0) return;
    const Block part = part_at(note);
    const Dropping rows = dropping(p_.dropout, key_, p_.shape.heads, part.b, part.h, part.i);
#pragma unroll
    for (int n = 0; n < kKeyTiles / 2; ++n) rows.drop(weights + 4 * n, 0, part.j / 16 + n);
  }

  // A block of rows, of which `last` is a tile.
  __device__ __forceinline__ void finish(uint32_t block, const Note& last, const RowSoftmax& softmax, Sums& o) const {
    const uint32_t staging = shared_.staging(4 * group_ + warp_id() % 4);
    // Values that are no finite numbers may have met weights of pairs that the mask excludes.
    const bool lost = write_rows(p_, part_of_block(block), softmax, o, staging);
    if (lost && (last.flags & Note::kScreened) == 0 && lane_id() == 0) shared_.ask_again(block);
  }
  // A tile's words are read, or of no use.
  __device__ __forceinline__ void pass_mixed() {
    __syncwarp();
    ptx::mbarrier_arrive_if(lane_id() == 0, shared_.of_clean().empty(mixed_.stage()));
    mixed_.next();
  }

  __device__ __forceinline__ void mend(uint32_t block) {
    mend_rows(p_, part_of_block(block), mend_);
    mend_ = KeysToMend{};
  }

  const ForwardParams& p_;
  const Shared shared_;
  const int group_;
  Turn<kPlanned> plans_;
  Turn<kStages> keys_, values_;
  Turn<kQueryStages> queries_;
  Turn<Shared::kBlocks> block_;  // of rows, that the scores are of
  const PhiloxKey key_ = dropout_key(p_.dropout);
  Turn<kStages> mixed_;  // tiles that are
  KeysToMend mend_;
  bool mend_due_ = false;  // of the block before
};

}  // namespace
}  // namespace fagen

extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_v192_h100_forward(const __grid_constant__ fagen::ForwardParams p, const __grid_constant__ fagen::ptx::TensorMap q,
                             const __grid_constant__ fagen::ptx::TensorMap k,
                             const __grid_constant__ fagen::ptx::TensorMap v) {
  using namespace fagen;
  extern __shared__ __align__(1024) char memory[];
  const Shared shared(ptx::shared_address(memory));
  if (threadIdx.x == 0) {
    shared.of_keys().make(1, 4 * kGroups);
    shared.of_values().make(1, 4 * kGroups + kScreeners);
    shared.of_queries().make(1, 4);
    shared.of_plans().make(1, 1);
    shared.of_clean().make(kScreeners, 4 * kGroups);
    shared.forget_again();
    ptx::mbarrier_init(shared.end(), kThreads - 32);
    ptx::fence_mbarrier_init();
  }
  ptx::sync_block();
  const int warp = __shfl_sync(~0u, warp_id(), 0);
  if (warp < 4) {
    ptx::give_up_registers<40>();
    if (warp == 0) {
      if (lane_id() == 0) Feeder(q, k, v, shared).run();
    } else if (warp == 1) {
      Scheduler scheduler(p, shared);
      do {
        scheduler.run();
      } while (shared.another_round());
      scheduler.stop();
    } else {
      Screener screener(shared, warp - 2);
      do {
        screener.run();
      } while (shared.another_round());
    }
  } else {
    ptx::take_registers<232>();
    Multiplier multiplier(p, shared, warp / 4 - 1);
    do {
      multiplier.run();
    } while (shared.another_round());
  }
}

// Adds up how the mask falls into tiles: total, full, partial, and of those the empty ones. By a warp.
extern "C" __global__ void __launch_bounds__(fagen::kThreads, 1)
    fagen_dropout_v192_h100_tile_counts(const __grid_constant__ fagen::ForwardParams p, int64_t* counts) {
  using namespace fagen;
  if (threadIdx.x >= 32) return;
  const int total = (static_cast<int>(p.shape.kv_len) + kTileKv - 1) / kTileKv;
  unsigned long long full = 0, partial = 0, empty = 0;
  const Block block = block_of(p, blockIdx.x);
  const int groups = (block.rows + 63) / 64;  // that have rows
  auto tiles = asked_tiles(p, block);
  for (TileFound found = tiles.take(); found.tile >= 0; found = tiles.take()) {
    if (~found.flags % (1u << groups) == 0) {
      ++full;
      continue;
    }
    bool any = false;
#pragma unroll 1
    for (int pair = lane_id(); pair < block.rows * kTileKv; pair += 32)
      any |= admits(p, at_key(block, found.tile * kTileKv), pair / kTileKv, pair % kTileKv);
    ++partial;
    empty += !__any_sync(~0u, any);
  }
  if (threadIdx.x == 0) {
    auto* const sums = reinterpret_cast<unsigned long long*>(counts);
    atomicAdd(sums, static_cast<unsigned long long>(total));
    atomicAdd(sums + 1, full);
    atomicAdd(sums + 2, partial);
    atomicAdd(sums + 3, empty);
  }
}
