// The draw: an exponential race (equivalently Gumbel-max). Token i has a number u_i in (0, 1) that
// depends on (seed, choice, position, i) alone, and the least -log(u_i) / p_i wins: token i with
// probability p_i. Two distributions that are raced with the same numbers agree nearly as often as any
// coupling of them could (Daliri, Musco & Musco, "Coupling without communication", 2024), which is what
// a drafter needs.
#pragma once
#include <cstdint>

#include "sample/philox.h"

namespace tidemill {

// Weights are read in groups of this many: arrays of them have room for a whole last group.
constexpr int64_t kRaceGroup = 64;

// -log(u) of a token: a 52-bit u, or the least value, 2^-33, where all 32 high bits are ones. That bounds
// how much less likely than the leader a token may be and still win.
double race_time(const RandomKey& key, int64_t token);

// The token that wins among those with e > 0, ties to the lowest id; -1 if there is none.
// e [n, rounded up to whole groups]: probabilities times any constant, the largest 1 at id `top`; 0 from
// n on.
int32_t race(const float* e, int64_t n, int64_t top, const RandomKey& key);

}  // namespace tidemill
