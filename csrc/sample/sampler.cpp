#include "sample/sampler.h"

#include <algorithm>
#include <limits>

#include "sample/exp_row.h"
#include "sample/philox.h"

namespace tidemill {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr uint32_t kFirstDraw = 0;

template <class T>
T at(const std::vector<T>& values, int64_t i) {
  return values[static_cast<size_t>(i)];
}
}  // namespace

int32_t Sampler::sample(const SamplingInput& in, const SampleRow& row, float* logits) {
  const int64_t s = row.index;
  if (!row_usable(logits, vocab_) || finite_range(logits, vocab_).max == -kInfinity) {
    return kLogitsNotFinite;
  }
  if (row.mask != nullptr) apply_mask(row.mask, logits);
  apply_bias(in, s, logits);
  apply_penalties(in, row, logits);
  if (!row_usable(logits, vocab_)) return kLogitsNotFinite;  // a penalty overflowed
  const Range range = finite_range(logits, vocab_);
  if (range.max == -kInfinity) return kNoTokenLeft;
  if (at(in.temperature, s) == 0.0f) {
    return static_cast<int32_t>(std::find(logits, logits + vocab_, range.max) - logits);
  }
  return draw(in, s, logits, range.max, range.min);
}

void Sampler::apply_mask(const uint8_t* mask, float* logits) const {
  for (int64_t i = 0; i < vocab_; ++i) {
    if (!(mask[i >> 3] >> (i & 7) & 1)) logits[i] = -kInfinity;
  }
}

void Sampler::apply_bias(const SamplingInput& in, int64_t s, float* logits) const {
  for (int32_t i = at(in.bias_start, s); i < at(in.bias_start, s + 1); ++i) {
    logits[at(in.bias_id, i)] += at(in.bias_value, i);
  }
}

void Sampler::count_token(int32_t token, bool generated) {
  Seen& seen = seen_[static_cast<size_t>(token)];
  if (!seen.present) touched_.push_back(token);
  seen.present = true;
  seen.generated += generated;
}

// Repetition penalty over all tokens of the history (Keskar et al. 2019), then presence and
// frequency penalties over its generated ones.
void Sampler::apply_penalties(const SamplingInput& in, const SampleRow& row, float* logits) {
  const int64_t s = row.index;
  const float repetition = at(in.repetition, s);
  const float presence = at(in.presence, s), frequency = at(in.frequency, s);
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
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
}

// Inverse of the cumulative distribution of the kept tokens, in ascending id order.
int32_t Sampler::draw(const SamplingInput& in, int64_t s, const float* logits, float max,
                      float min) {
  float* const z = z_.ensure(vocab_);
  float* const e = e_.ensure(vocab_);
  const float temperature = at(in.temperature, s);
  scaled_exp(logits, vocab_, max, temperature, z, e);
  const double total = sum_row(e, vocab_);
  const FilterParams params{at(in.top_k, s), at(in.top_p, s), at(in.min_p, s)};
  const Cut cut = filters_.cut(z, e, vocab_, (min - max) / temperature, total, params);

  double kept = 0.0;
  for (int64_t i = 0; i < vocab_; ++i) {
    if (cut.keeps(z[i], i)) kept += static_cast<double>(e[i]);
  }
  const double u = uniform(at(in.seed, s), static_cast<uint32_t>(at(in.choice, s)),
                           static_cast<uint32_t>(at(in.position, s)), kFirstDraw);
  const double target = u * kept;
  double sum = 0.0;
  int32_t token = kNoTokenLeft;
  for (int64_t i = 0; i < vocab_; ++i) {
    if (e[i] == 0.0f || !cut.keeps(z[i], i)) continue;
    sum += static_cast<double>(e[i]);
    token = static_cast<int32_t>(i);  // should rounding keep sum below target: the last kept one
    if (sum > target) break;
  }
  return token;
}

}  // namespace tidemill
