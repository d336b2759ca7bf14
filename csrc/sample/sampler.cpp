#include "sample/sampler.h"

#include <algorithm>
#include <limits>

#include "sample/exp_row.h"
#include "sample/race.h"

namespace tidemill {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Up to so many kept tokens, numbers are made one by one.
constexpr int64_t kFew = 512;

template <class T>
T at(const std::vector<T>& values, int64_t i) {
  return values[static_cast<size_t>(i)];
}
}  // namespace

int32_t Sampler::sample(const SamplingInput& in, const SampleRow& row, float* logits) {
  const int64_t s = row.index;
  float max = max_of(logits, vocab_);
  if (!row_usable(logits, vocab_) || max == -kInfinity) return kLogitsNotFinite;
  if (row.mask != nullptr) apply_mask(row.mask, logits);
  const bool biased = apply_bias(in, s, logits), penalised = apply_penalties(in, row, logits);
  if (row.mask != nullptr || biased || penalised) {
    if (!row_usable(logits, vocab_)) return kLogitsNotFinite;  // a penalty overflowed
    max = max_of(logits, vocab_);
    if (max == -kInfinity) return kNoTokenLeft;
  }
  if (at(in.temperature, s) == 0.0f) {
    return static_cast<int32_t>(find_first(logits, vocab_, max));
  }
  return draw(in, s, logits, max);
}

int32_t Sampler::adjust(const SamplingInput& in, const SampleRow& row, float* logits) {
  if (!row_usable(logits, vocab_)) return kLogitsNotFinite;
  if (row.mask != nullptr) apply_mask(row.mask, logits);
  apply_bias(in, row.index, logits);
  apply_penalties(in, row, logits);
  if (!row_usable(logits, vocab_)) return kLogitsNotFinite;
  return max_of(logits, vocab_) == -kInfinity ? kNoTokenLeft : 0;
}

void Sampler::apply_mask(const uint8_t* mask, float* logits) const {
  for (int64_t byte = 0; byte * 8 < vocab_; ++byte) {
    if (mask[byte] == 0xff) continue;
    const int64_t end = std::min(vocab_, byte * 8 + 8);
    for (int64_t i = byte * 8; i < end; ++i) {
      if (!(mask[byte] >> (i & 7) & 1)) logits[i] = -kInfinity;
    }
  }
}

bool Sampler::apply_bias(const SamplingInput& in, int64_t s, float* logits) const {
  for (int32_t i = at(in.bias_start, s); i < at(in.bias_start, s + 1); ++i) {
    logits[at(in.bias_id, i)] += at(in.bias_value, i);
  }
  return at(in.bias_start, s) < at(in.bias_start, s + 1);
}

void Sampler::count_token(int32_t token, bool generated) {
  Seen& seen = seen_[static_cast<size_t>(token)];
  if (!seen.present) touched_.push_back(token);
  seen.present = true;
  seen.generated += generated;
}

// Repetition penalty over all tokens of the history (Keskar et al. 2019), then presence and frequency
// penalties over its generated tokens.
bool Sampler::apply_penalties(const SamplingInput& in, const SampleRow& row, float* logits) {
  const int64_t s = row.index;
  const float repetition = at(in.repetition, s);
  const float presence = at(in.presence, s), frequency = at(in.frequency, s);
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return false;
  seen_.resize(static_cast<size_t>(vocab_));
  touched_.clear();
  const int32_t begin = at(in.history_start, s), end = at(in.history_start, s + 1);
  const int32_t prompt_end = begin + at(in.history_prompt, s);
  for (int32_t i = begin; i < end; ++i) count_token(at(in.history, i), i >= prompt_end);
  if (row.pending_token >= 0) count_token(row.pending_token, true);
  for (const int32_t token : touched_) {
    Seen& seen = seen_[static_cast<size_t>(token)];
    float& logit = logits[token];
    if (repetition != 1.0f) logit = logit > 0.0f ? logit / repetition : logit * repetition;
    if (seen.generated > 0) {
      logit -= presence;
      logit -= frequency * static_cast<float>(seen.generated);
    }
    seen = Seen{};
  }
  return true;
}

// An exponential race of the kept tokens.
int32_t Sampler::draw(const SamplingInput& in, int64_t s, const float* logits, float max) {
  float* const z = z_.ensure(vocab_);
  float* const e = e_.ensure(round_up(vocab_, kRaceGroup));
  scaled_exp(logits, vocab_, max, at(in.temperature, s), z, e);
  const RandomKey key{at(in.seed, s), static_cast<uint32_t>(at(in.choice, s)),
                      static_cast<uint32_t>(at(in.position, s))};
  const FilterParams params{at(in.top_k, s), at(in.top_p, s), at(in.min_p, s)};
  const bool unfiltered = (params.top_k == 0 || params.top_k >= vocab_) && params.top_p >= 1.0f &&
                          params.min_p == 0.0f;
  if (!unfiltered) {
    const double total = params.top_p < 1.0f ? sum_row(e, vocab_) : 0.0;
    const Filters::Kept kept = filters_.apply({z, e, vocab_, total}, params);
    if (kept.count <= kFew) return race_among(e, kept.ids, kept.count, key);
    keep_only(kept, e);
  }
  std::fill(e + vocab_, e + round_up(vocab_, kRaceGroup), 0.0f);
  return race(e, vocab_, find_first(z, vocab_, 0.0f), key);
}

void Sampler::keep_only(const Filters::Kept& kept, float* e) const {
  int64_t begin = 0;
  for (int64_t i = 0; i <= kept.count; ++i) {
    const int64_t end = i < kept.count ? kept.ids[i] : vocab_;
    std::fill(e + begin, e + end, 0.0f);
    begin = end + 1;
  }
}

}  // namespace tidemill
