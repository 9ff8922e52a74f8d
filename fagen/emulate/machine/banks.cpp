// Bank conflicts. Shared memory has 32 banks of 4 bytes. A warp's access is carried out in parts of no more than 128 bytes:
// of 4 bytes or less a lane, by all lanes at once; of 8, by half a warp; of 16, by a quarter, as each matrix of ldmatrix
// is. A part takes as long as the bank that most of its words lie in; the same word is given to any number of lanes.
#include <algorithm>

#include "machine.h"

namespace fagen::emulate {
namespace {

using Lanes = std::array<std::pair<u64, u32>, kLanes>;  // address and bytes; 0 bytes: not there

u64 conflicts_of(const Lanes& lanes) {
  u32 widest = 4;
  for (const auto& [address, bytes] : lanes) widest = std::max(widest, bytes);
  const u32 part = std::max(128 / widest, u32{1});
  u64 found = 0;
  for (u32 first = 0; first < kLanes; first += part) {
    std::array<std::vector<u64>, 32> words;
    for (u32 lane = first; lane < std::min<u32>(first + part, kLanes); ++lane) {
      const auto& [address, bytes] = lanes[lane];
      for (u64 word = address / 4; bytes > 0 && word <= (address + bytes - 1) / 4; ++word) {
        auto& of_bank = words[word % 32];
        if (std::find(of_bank.begin(), of_bank.end(), word) == of_bank.end()) of_bank.push_back(word);
      }
    }
    size_t most = 1;
    for (const auto& of_bank : words) most = std::max(most, of_bank.size());
    found += most - 1;
  }
  return found;
}

}  // namespace

void count_banks(Thread& t, u64 address, u32 bytes) {
  Block& block = *t.block;
  const u32 nth = block.more[t.index].times[t.at]++;
  auto& access = block.accesses[{t.at, t.warp, nth}];
  access[t.lane] = {address, bytes};
}

void add_conflicts(Machine& m, const Block& block) {
  for (const auto& [key, lanes] : block.accesses) m.conflicts[std::get<0>(key)] += conflicts_of(lanes);
}

}  // namespace fagen::emulate
