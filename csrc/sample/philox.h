// Philox4x32-10 (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): a
// counter-based generator, whose numbers depend on key and counter alone.
#pragma once
#include <array>
#include <cstdint>

namespace tidemill {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u, kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = kMultiplier0 * counter[0], b = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// What a stream of random numbers depends on. `draw` is its purpose: see `Draw`.
struct RandomKey {
  uint64_t seed;
  uint32_t choice, position;
};

enum class Draw : uint32_t {
  kRaceHigh = 0,  // the 32 high bits of each token's number in the race (race.h)
  kRaceLow = 1,   // its 20 low bits
  kXtc = 2,       // whether XTC applies
};

inline std::array<uint32_t, 4> random_words(const RandomKey& key, Draw draw, uint32_t index) {
  return philox4x32({key.choice, key.position, static_cast<uint32_t>(draw), index},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

// Uniform in [0, 1) with 53 random bits.
inline double uniform(const RandomKey& key, Draw draw) {
  const auto words = random_words(key, draw, 0);
  const uint64_t high = words[0] >> 5, low = words[1] >> 6;
  return (static_cast<double>(high) * 67108864.0 + static_cast<double>(low)) *
         (1.0 / 9007199254740992.0);
}

}  // namespace tidemill
