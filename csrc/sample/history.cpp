#include "sample/history.h"

#include <algorithm>
#include <limits>

namespace tidemill {

namespace {
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMostPenalty = 1e30;
}  // namespace

void ban_words(const History& history, const int32_t* words, int64_t size, float* logits) {
  const int64_t generated = history.count - history.prompt;
  for (int64_t at = 0; at < size; at += words[at] + 1) {
    const int64_t length = words[at];
    const int32_t* const word = words + at + 1;
    if (length - 1 > generated) continue;
    if (std::equal(word, word + length - 1, history.tokens + history.count - (length - 1))) {
      logits[word[length - 1]] = -kInfinity;
    }
  }
}

void ban_ngrams(const History& history, int64_t n, float* logits) {
  const int32_t* const end = history.tokens + history.count;
  for (const int32_t* at = history.tokens; at + n <= end; ++at) {
    if (std::equal(at, at + n - 1, end - (n - 1))) logits[at[n - 1]] = -kInfinity;
  }
}

void Dry::apply(const History& history, const SamplerOptions& options, const int32_t* breakers,
                int64_t num_breakers, float* logits) {
  const int64_t last_n = options.dry_penalty_last_n;
  const int64_t n = last_n < 0 ? history.count : std::min<int64_t>(last_n, history.count);
  const int32_t* const end = history.tokens + history.count;
  const auto token = [end](int64_t back) { return end[-1 - back]; };  // 0: the last one
  const auto breaks = [&](int32_t id) {
    return std::find(breakers, breakers + num_breakers, id) != breakers + num_breakers;
  };
  int64_t limit = 0;  // tokens since the last breaker
  while (limit < n && !breaks(token(limit))) ++limit;
  if (limit < options.dry_allowed_length || n < 2) return;
  // The Z-algorithm on the reversed history: how long what ends `back` tokens before the end equals what
  // ends the history.
  matches_.assign(static_cast<size_t>(n), 0);
  int64_t left = 0, right = 0;
  longest_.clear();
  for (int64_t back = 1; back < n; ++back) {
    int64_t length = back < right ? std::min<int64_t>(right - back, matches_[static_cast<size_t>(back - left)]) : 0;
    while (back + length < n && token(length) == token(back + length)) ++length;
    matches_[static_cast<size_t>(back)] = static_cast<int32_t>(length);
    if (back + length > right) {
      left = back;
      right = back + length;
    }
    length = std::min(length, limit);
    if (length >= options.dry_allowed_length) {
      longest_.push_back({token(back - 1), static_cast<int32_t>(length)});
    }
  }
  // By token, the longest first.
  std::sort(longest_.begin(), longest_.end(), [](const auto& a, const auto& b) {
    return a.first < b.first || (a.first == b.first && a.second > b.second);
  });
  for (size_t i = 0; i < longest_.size(); ++i) {
    const auto [id, length] = longest_[i];
    if ((i > 0 && longest_[i - 1].first == id) || breaks(id)) continue;
    double penalty = options.dry_multiplier;
    for (int32_t k = options.dry_allowed_length; k < length && penalty < kMostPenalty; ++k) {
      penalty *= static_cast<double>(options.dry_base);
    }
    logits[id] -= static_cast<float>(std::min(penalty, kMostPenalty));
  }
}

}  // namespace tidemill
