// Samples tokens: the order of operations of contract/sampling.py on one row of logits.
#pragma once
#include <cstdint>
#include <vector>

#include "memory/memory.h"
#include "runtime/step.h"
#include "sample/filters.h"
#include "sample/history.h"
#include "sample/race.h"

namespace tidemill {

// The part of SamplingInput for one row, and its further inputs.
struct SampleRow {
  int64_t index;                 // row of `SamplingInput`
  int32_t pending_token = -1;    // a generated token not yet in the history (FUTURE), or -1
  const uint8_t* mask = nullptr; // 1 bit per token, little-endian, 1 allows; null allows all
};

// One per thread: holds scratch memory.
class Sampler {
 public:
  explicit Sampler(int64_t vocab) : vocab_(vocab) {}

  // Returns the token of a row, kNoTokenLeft or kLogitsNotFinite. Modifies `logits` [vocab] in place.
  int32_t sample(const SamplingInput& in, const SampleRow& row, float* logits);

  // Applies masks, bias, bans and penalties. Returns 0, kNoTokenLeft or kLogitsNotFinite.
  int32_t adjust(const SamplingInput& in, const SampleRow& row, float* logits);

  // The tokens that `sample` would draw from, ascending. Modifies `logits`.
  std::vector<int32_t> drawn_from(const SamplingInput& in, const SampleRow& row, float* logits);

 private:
  // Whether a logit was changed.
  bool change(const SamplingInput& in, const SampleRow& row, float* logits);
  void apply_mask(const uint8_t* mask, int64_t bytes, float* logits) const;
  bool apply_bias(const SamplingInput& in, int64_t s, float* logits) const;
  void apply_history(const SamplingInput& in, const SampleRow& row, const SamplerOptions& options,
                     float* logits);
  bool apply_penalties(const SamplingInput& in, const SampleRow& row, float* logits);
  void count_token(int32_t token, bool generated);
  void select(const SamplingInput& in, int64_t s, const float* logits, float max);
  void scale(const SamplerOptions* options, float temperature, const float* logits, float max);
  void filter(const SamplingInput& in, int64_t s, const SamplerOptions* options, const float* logits,
              float max);
  int32_t run_race(const RandomKey& key);

  struct Seen {
    int32_t generated = 0;
    bool present = false;
  };
  int64_t vocab_;
  std::vector<Seen> seen_;       // all zero between rows
  std::vector<int32_t> touched_, history_;
  Buffer<float> z_, e_;          // of the row that is drawn
  Filters filters_;
  Dry dry_;
};

}  // namespace tidemill
