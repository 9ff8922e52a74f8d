// Shuffles, votes, matches, reductions within a warp. Source: PTX ISA, shfl.sync, vote.sync, match.sync, redux.sync,
// elect.sync.
#include "machine.h"

#define FAGEN_COLLECTIVE extern "C" __attribute__((visibility("default"))) void

namespace fagen::emulate {
namespace {

template <typename F>
void each(u32 mask, F f) {
  for (u32 lane = 0; lane < kLanes; ++lane) {
    if (mask >> lane & 1) f(lane);
  }
}

}  // namespace

FAGEN_COLLECTIVE fagen_bar_warp(Machine&, Warp&, u32, const Collective&) {}

// Operands: d, p, a, b, c; detail: 0 up, 1 down, 2 bfly, 3 idx.
FAGEN_COLLECTIVE fagen_shfl(Machine&, Warp& warp, u32 mask, const Collective& op) {
  u32 values[kLanes] = {}, out[kLanes] = {};
  bool in_range[kLanes] = {};
  each(mask, [&](u32 lane) { values[lane] = operand<u32>(warp, lane, 2); });
  each(mask, [&](u32 lane) {
    const u32 b = operand<u32>(warp, lane, 3) & 31, c = operand<u32>(warp, lane, 4);
    const u32 clamp = c & 31, segment = c >> 8 & 31;
    const s32 most = static_cast<s32>((lane & segment) | (clamp & ~segment)), least = static_cast<s32>(lane & segment);
    s32 j = 0;
    bool p = false;
    switch (op.detail[0]) {
      case 0: j = static_cast<s32>(lane) - static_cast<s32>(b); p = j >= most; break;
      case 1: j = static_cast<s32>(lane + b); p = j <= most; break;
      case 2: j = static_cast<s32>(lane ^ b); p = j <= most; break;
      default: j = least | static_cast<s32>(b & ~segment); p = j <= most; break;
    }
    if (!p) j = static_cast<s32>(lane);
    in_range[lane] = p;
    // What a lane that takes no part holds is not defined: all ones, which no result should survive.
    out[lane] = j >= 0 && j < kLanes && mask >> j & 1 ? values[j] : 0xffffffffu;
  });
  each(mask, [&](u32 lane) {
    if (has_operand(warp, lane, 0)) operand<u32>(warp, lane, 0) = out[lane];
    if (has_operand(warp, lane, 1)) operand<bool>(warp, lane, 1) = in_range[lane];
  });
}

// Operands: result, predicate; detail: 0 all, 1 any, 2 uni, 3 ballot.
FAGEN_COLLECTIVE fagen_vote(Machine&, Warp& warp, u32 mask, const Collective& op) {
  u32 ballot = 0;
  each(mask, [&](u32 lane) { ballot |= static_cast<u32>(operand<bool>(warp, lane, 1)) << lane; });
  const bool all = ballot == mask, any = ballot != 0;
  each(mask, [&](u32 lane) {
    if (!has_operand(warp, lane, 0)) return;
    switch (op.detail[0]) {
      case 0: operand<bool>(warp, lane, 0) = all; break;
      case 1: operand<bool>(warp, lane, 0) = any; break;
      case 2: operand<bool>(warp, lane, 0) = all || !any; break;
      default: operand<u32>(warp, lane, 0) = ballot; break;
    }
  });
}

// Operands: d, p, a; detail: all?, bytes of a.
FAGEN_COLLECTIVE fagen_match(Machine&, Warp& warp, u32 mask, const Collective& op) {
  u64 values[kLanes] = {};
  each(mask, [&](u32 lane) {
    values[lane] = op.detail[1] == 8 ? operand<u64>(warp, lane, 2) : operand<u32>(warp, lane, 2);
  });
  each(mask, [&](u32 lane) {
    u32 same = 0;
    each(mask, [&](u32 other) { same |= static_cast<u32>(values[other] == values[lane]) << other; });
    const bool all = same == mask;
    if (has_operand(warp, lane, 0)) operand<u32>(warp, lane, 0) = op.detail[0] != 0 ? (all ? mask : 0) : same;
    if (has_operand(warp, lane, 1)) operand<bool>(warp, lane, 1) = all;
  });
}

// Operands: d, a; detail: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor; 0 unsigned, 1 signed, 2 float32 (| 4 abs | 8 NaN).
FAGEN_COLLECTIVE fagen_redux(Machine&, Warp& warp, u32 mask, const Collective& op) {
  bool first = true;
  u32 total = 0;
  each(mask, [&](u32 lane) {
    u32 x = operand<u32>(warp, lane, 1);
    if ((op.detail[1] & 3) == 2 && op.detail[1] & 4) x &= 0x7fffffffu;
    if (first) {
      total = x;
      first = false;
      return;
    }
    if ((op.detail[1] & 3) == 2) {
      const bool nan = op.detail[1] & 8;
      const float a = f32(total), b = f32(x);
      const float now = op.detail[0] == 1 ? (nan ? f_min<true>(a, b) : f_min<false>(a, b))
                                          : (nan ? f_max<true>(a, b) : f_max<false>(a, b));
      total = bits(now);
      return;
    }
    const bool is_signed = op.detail[1] == 1;
    const bool less = is_signed ? static_cast<s32>(x) < static_cast<s32>(total) : x < total;
    switch (op.detail[0]) {
      case 0: total += x; break;
      case 1: total = less ? x : total; break;
      case 2: total = less ? total : x; break;
      case 3: total &= x; break;
      case 4: total |= x; break;
      default: total ^= x; break;
    }
  });
  each(mask, [&](u32 lane) {
    if (has_operand(warp, lane, 0)) operand<u32>(warp, lane, 0) = total;
  });
}

// Operands: d, p. The first lane is as good as any.
FAGEN_COLLECTIVE fagen_elect(Machine&, Warp& warp, u32 mask, const Collective&) {
  const u32 leader = static_cast<u32>(__builtin_ctz(mask));
  each(mask, [&](u32 lane) {
    if (has_operand(warp, lane, 0)) operand<u32>(warp, lane, 0) = leader;
    if (has_operand(warp, lane, 1)) operand<bool>(warp, lane, 1) = lane == leader;
  });
}

}  // namespace fagen::emulate
