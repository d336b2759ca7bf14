// What a row's token history changes in its logits: sequences that are banned, and DRY.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/step.h"

namespace tidemill {

struct History {
  const int32_t* tokens;
  int64_t count;
  int64_t prompt;  // how many of them are the prompt
};

// Bans the tokens that would complete a bad word in the generated tokens.
void ban_words(const History& history, const int32_t* words, int64_t size, float* logits);

// Bans the tokens that would complete a sequence of n tokens that occurred already.
void ban_ngrams(const History& history, int64_t n, float* logits);

// DRY: subtracts multiplier * base^(length - allowed_length) from a token that would make the end of the
// history, `length` tokens of it, repeat what was followed by that token before.
class Dry {
 public:
  void apply(const History& history, const SamplerOptions& options, const int32_t* breakers,
             int64_t num_breakers, float* logits);

 private:
  std::vector<int32_t> matches_;              // lengths, by distance from the end
  std::vector<std::pair<int32_t, int32_t>> longest_;  // (token, length)
};

}  // namespace tidemill
