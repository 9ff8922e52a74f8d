// Where a wgmma's matrix descriptor says that elements lie. Source: PTX ISA, Asynchronous Warpgroup-Level Matrix Shared
// Memory Layout; Matrix Descriptor Format.
#pragma once
#include "tensormap.h"

namespace fagen::emulate {

struct Descriptor {
  u64 start, leading, stride;  // bytes
  u32 base, chunks;            // of the swizzle; 1: none

  explicit Descriptor(u64 bits)
      : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4),
        base(static_cast<u32>(bits >> 49 & 7)), chunks(kChunks[bits >> 62]) {}

  // The 16 bytes of K-elements of a row (of A, or a column of B); `half` of the 32 bytes that K is long.
  u64 along_k(u32 row, u32 half) const {
    const u64 in_group = u64{row / 8} * stride + u64{row % 8} * 16 * chunks;
    return placed(in_group + half * (chunks == 1 ? leading : 16));
  }

  // The 16 bytes of 8 rows from `row` on, at one k, of 16-bit elements that lie along M or N.
  u64 along_rows(u32 row, u32 k) const {
    if (chunks == 1) return placed(u64{row / 8} * stride + u64{k % 8} * 16 + u64{k / 8} * leading);
    const u32 width = 8 * chunks;
    return placed(u64{row / width} * leading + u64{row % width} * 2 + u64{k % 8} * 16 * chunks + u64{k / 8} * stride);
  }

 private:
  static constexpr u32 kChunks[] = {1, 8, 4, 2};
  u64 placed(u64 offset) const { return swizzled((start + offset) & 0x3ffff, chunks, base); }
};

}  // namespace fagen::emulate
