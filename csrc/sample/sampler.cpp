#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sample/exp_row.h"
#include "sample/portable_math.h"
#include "sample/temperature.h"

namespace tidemill {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The least weight that top_a, epsilon and eta cutoffs keep; the most likely token has 1.
double least_share(const SamplerOptions& options, const Distribution& d, double total) {
  double least = static_cast<double>(options.top_a) / total;
  least = std::max(least, static_cast<double>(options.epsilon_cutoff) * total);
  if (options.eta_cutoff > 0.0f) {
    const double eta = options.eta_cutoff;
    const double flat = std::sqrt(eta) * portable_exp(-entropy(d.z, d.e, d.n, total));
    least = std::max(least, std::min(eta, flat) * total);
  }
  return std::min(least, 1.0);
}

template <class T>
T at(const std::vector<T>& values, int64_t i) {
  return values[static_cast<size_t>(i)];
}

RandomKey key_of(const SamplingInput& in, int64_t s) {
  return {at(in.seed, s), static_cast<uint32_t>(at(in.choice, s)),
          static_cast<uint32_t>(at(in.position, s))};
}
}  // namespace

int32_t Sampler::sample(const SamplingInput& in, const SampleRow& row, float* logits) {
  float max = max_of(logits, vocab_);
  if (!row_usable(logits, vocab_) || max == -kInfinity) return kLogitsNotFinite;
  if (change(in, row, logits)) {
    if (!row_usable(logits, vocab_)) return kLogitsNotFinite;  // a penalty overflowed
    max = max_of(logits, vocab_);
    if (max == -kInfinity) return kNoTokenLeft;
  }
  if (at(in.temperature, row.index) == 0.0f) {
    return static_cast<int32_t>(find_first(logits, vocab_, max));
  }
  select(in, row.index, logits, max);
  return run_race(key_of(in, row.index));
}

int32_t Sampler::adjust(const SamplingInput& in, const SampleRow& row, float* logits) {
  if (!row_usable(logits, vocab_)) return kLogitsNotFinite;
  change(in, row, logits);
  if (!row_usable(logits, vocab_)) return kLogitsNotFinite;
  return max_of(logits, vocab_) == -kInfinity ? kNoTokenLeft : 0;
}

bool Sampler::change(const SamplingInput& in, const SampleRow& row, float* logits) {
  const SamplerOptions* const options = in.extras.of(row.index);
  if (row.mask != nullptr) apply_mask(row.mask, (vocab_ + 7) / 8, logits);
  const bool biased = apply_bias(in, row.index, logits);
  const bool penalized = apply_penalties(in, row, logits);
  if (options != nullptr) apply_history(in, row, *options, logits);
  return row.mask != nullptr || biased || penalized || options != nullptr;
}

// `allowed`, bad words, repeated sequences and DRY.
void Sampler::apply_history(const SamplingInput& in, const SampleRow& row,
                            const SamplerOptions& options, float* logits) {
  const SamplerExtras& extras = in.extras;
  const int32_t o = at(extras.row, row.index);
  if (options.allowed >= 0) {
    apply_mask(extras.allowed.data() + options.allowed * extras.allowed_bytes, extras.allowed_bytes,
               logits);
  }
  const int32_t words = at(extras.bad_words_start, o), words_end = at(extras.bad_words_start, o + 1);
  if (words == words_end && options.no_repeat_ngram_size == 0 && options.dry_multiplier == 0.0f) {
    return;
  }
  const auto begin = in.history.begin() + at(in.history_start, row.index);
  history_.assign(begin, in.history.begin() + at(in.history_start, row.index + 1));
  if (row.pending_token >= 0) history_.push_back(row.pending_token);
  const History history{history_.data(), static_cast<int64_t>(history_.size()),
                        at(in.history_prompt, row.index)};
  ban_words(history, extras.bad_words.data() + words, words_end - words, logits);
  if (options.no_repeat_ngram_size > 0) ban_ngrams(history, options.no_repeat_ngram_size, logits);
  if (options.dry_multiplier > 0.0f) {
    const int32_t breakers = at(extras.breakers_start, o);
    dry_.apply(history, options, extras.breakers.data() + breakers,
               at(extras.breakers_start, o + 1) - breakers, logits);
  }
}

// Tokens beyond the mask's bytes are banned.
void Sampler::apply_mask(const uint8_t* mask, int64_t bytes, float* logits) const {
  if (bytes * 8 < vocab_) std::fill(logits + bytes * 8, logits + vocab_, -kInfinity);
  const int64_t whole = std::min(bytes, vocab_ / 8);
  for (int64_t byte = 0; byte < whole; ++byte) {
    if (mask[byte] == 0xff) continue;
    const uint32_t bits = mask[byte];
    float* const x = logits + byte * 8;
    for (int i = 0; i < 8; ++i) x[i] = (bits >> i & 1u) != 0 ? x[i] : -kInfinity;
  }
  for (int64_t i = whole * 8; i < std::min(vocab_, bytes * 8); ++i) {
    if (!(mask[i / 8] >> (i & 7) & 1)) logits[i] = -kInfinity;
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
  const SamplerOptions* const options = in.extras.of(s);
  int32_t first = begin;
  if (options != nullptr && options->repeat_last_n >= 0) {  // of which the pending token is one
    const int32_t pending = row.pending_token >= 0, last_n = options->repeat_last_n;
    if (last_n == 0) return false;
    first = std::max(begin, end + pending - last_n);
  }
  for (int32_t i = first; i < end; ++i) count_token(at(in.history, i), i >= prompt_end);
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

// Leaves weights of the tokens to draw from in e.
void Sampler::select(const SamplingInput& in, int64_t s, const float* logits, float max) {
  const SamplerOptions* const options = in.extras.of(s);
  z_.ensure(vocab_);
  e_.ensure(round_up(vocab_, kRaceGroup));
  scale(options, at(in.temperature, s), logits, max);
  filter(in, s, options, logits, max);
  if (options == nullptr) return;
  const Distribution d{z_.data(), e_.data(), vocab_};
  if (options->typical_p < 1.0f) filters_.typical(d, options->typical_p);
  if (options->xtc_probability > 0.0f &&
      uniform(key_of(in, s), Draw::kXtc) < static_cast<double>(options->xtc_probability)) {
    filters_.drop_top(d, options->xtc_threshold);
  }
}

std::vector<int32_t> Sampler::drawn_from(const SamplingInput& in, const SampleRow& row, float* logits) {
  change(in, row, logits);
  select(in, row.index, logits, max_of(logits, vocab_));
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < vocab_; ++i) {
    if (e_.data()[i] > 0.0f) ids.push_back(static_cast<int32_t>(i));
  }
  return ids;
}

// z and e of the row.
void Sampler::scale(const SamplerOptions* options, float temperature, const float* logits, float max) {
  float *const z = z_.data(), *const e = e_.data();
  if (options != nullptr && options->dynatemp_range > 0.0f) {
    temperature = dynamic_temperature(logits, vocab_, max, temperature, options->dynatemp_range,
                                      options->dynatemp_exponent, z, e);
  }
  scaled_exp(logits, vocab_, max, temperature, z, e);
  if (options != nullptr && options->smoothing_factor > 0.0f) {
    smooth_row(z, e, vocab_, options->smoothing_factor, options->smoothing_curve);
  }
}

// The filters that look at the whole distribution.
void Sampler::filter(const SamplingInput& in, int64_t s, const SamplerOptions* options,
                     const float* logits, float max) {
  FilterParams params;
  params.top_k = at(in.top_k, s) >= vocab_ ? 0 : at(in.top_k, s);
  params.top_p = at(in.top_p, s);
  params.least_e = at(in.min_p, s);
  const Distribution d{z_.data(), e_.data(), vocab_};
  const bool shares = options != nullptr && (options->top_a > 0.0f || options->epsilon_cutoff > 0.0f ||
                                             options->eta_cutoff > 0.0f);
  if (params.top_p < 1.0f || shares) params.total = sum_row(d.e, vocab_);
  if (shares) params.least_e = std::max(params.least_e, least_share(*options, d, params.total));
  if (options != nullptr && options->top_n_sigma > 0.0f) {
    params.logits = logits;
    params.max = max;
    params.sigmas = static_cast<double>(options->top_n_sigma) * std::sqrt(moments(logits, vocab_).variance);
  }
  filters_.apply(d, params);
}

int32_t Sampler::run_race(const RandomKey& key) {
  float* const e = e_.data();
  std::fill(e + vocab_, e + round_up(vocab_, kRaceGroup), 0.0f);
  int64_t top = find_first(e, vocab_, 1.0f);
  if (top == vocab_) top = find_first(e, vocab_, max_of(e, vocab_));  // it was dropped
  return race(e, vocab_, top, key);
}

}  // namespace tidemill
