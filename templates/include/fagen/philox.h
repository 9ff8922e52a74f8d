// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), and
// what dropout makes of it. docs/kernel.md says which pair has which number; fagen/runtime/dropout.py is the same in torch.
#pragma once
#include "fagen/function.h"
#include "fagen/params.h"

namespace fagen {
namespace {

struct PhiloxKey {
  uint32_t x, y;
};

// Of uint32_t, or of vectors of them: many calls with one key.
template <class Word>
struct PhiloxWords {
  Word x, y, z, w;
};

// The upper half of a product.
template <class Word>
struct UpperHalf;

template <>
struct UpperHalf<uint32_t> {
  static FAGEN_FUNCTION uint32_t of(uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(static_cast<uint64_t>(a) * b >> 32);
  }
};

template <class Word>
FAGEN_FUNCTION PhiloxWords<Word> philox(PhiloxWords<Word> counter, PhiloxKey key) {
  constexpr uint32_t kX = 0xd2511f53u, kZ = 0xcd9e8d57u;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int round = 0; round < 10; ++round) {
    counter = {UpperHalf<Word>::of(counter.z, kZ) ^ counter.y ^ key.x, counter.z * kZ,
               UpperHalf<Word>::of(counter.x, kX) ^ counter.w ^ key.y, counter.x * kX};
    key.x += 0x9e3779b9u;
    key.y += 0xbb67ae85u;
  }
  return counter;
}

// The key of a call's numbers: streams of two offsets have nothing in common.
FAGEN_FUNCTION PhiloxKey dropout_key(const Dropout& dropout) {
  const auto seed = static_cast<uint64_t>(dropout.rng_state[0]), offset = static_cast<uint64_t>(dropout.rng_state[1]);
  const PhiloxWords<uint32_t> words =
      philox<uint32_t>({static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0},
                       {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return {words.x, words.y};
}

}  // namespace
}  // namespace fagen
