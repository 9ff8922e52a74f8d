// ldmatrix, stmatrix, movmatrix. Source: PTX ISA, ldmatrix: lane r of matrix i gives the address of row r; lane l holds
// elements 2 (l % 4) and the next of row l / 4.
#include "machine.h"

#define FAGEN_COLLECTIVE extern "C" __attribute__((visibility("default"))) void

namespace fagen::emulate {
namespace {

using Tile = u16[8][8];

void give(Warp& warp, s32 n, const Tile& tile, bool trans) {
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 row = lane / 4, column = lane % 4 * 2;
    const u32 low = trans ? tile[column][row] : tile[row][column];
    const u32 high = trans ? tile[column + 1][row] : tile[row][column + 1];
    if (has_operand(warp, lane, n)) operand<u32>(warp, lane, n) = low | high << 16;
  }
}

void gather(Warp& warp, s32 n, Tile& tile, bool trans) {
  for (u32 lane = 0; lane < kLanes; ++lane) {
    const u32 row = lane / 4, column = lane % 4 * 2, value = operand<u32>(warp, lane, n);
    (trans ? tile[column][row] : tile[row][column]) = static_cast<u16>(value);
    (trans ? tile[column + 1][row] : tile[row][column + 1]) = static_cast<u16>(value >> 16);
  }
}

}  // namespace

// Operands: the address, then a register a matrix; detail: matrices, transposed?
FAGEN_COLLECTIVE fagen_ldmatrix(Machine& m, Warp& warp, u32, const Collective& op) {
  Tile tiles[4];
  for (s32 n = 0; n < op.detail[0]; ++n) {
    for (u32 row = 0; row < 8; ++row) {
      const u32 lane = static_cast<u32>(n) * 8 + row;
      read_shared(m, warp.lanes[lane], operand<u64>(warp, lane, 0), tiles[n][row], 16);
    }
  }
  for (s32 n = 0; n < op.detail[0]; ++n) give(warp, 1 + n, tiles[n], op.detail[1] != 0);
}

FAGEN_COLLECTIVE fagen_stmatrix(Machine& m, Warp& warp, u32, const Collective& op) {
  for (s32 n = 0; n < op.detail[0]; ++n) {
    Tile tile;
    gather(warp, 1 + n, tile, op.detail[1] != 0);
    for (u32 row = 0; row < 8; ++row) {
      const u32 lane = static_cast<u32>(n) * 8 + row;
      write_shared(m, warp.lanes[lane], operand<u64>(warp, lane, 0), tile[row], 16);
    }
  }
}

FAGEN_COLLECTIVE fagen_movmatrix(Machine&, Warp& warp, u32, const Collective&) {
  Tile tile;
  gather(warp, 1, tile, false);
  give(warp, 0, tile, true);
}

}  // namespace fagen::emulate
