#include "sample/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace tidemill {

double log_sum_exp(const KernelTable& kernels, const float* logits, int64_t n) {
  const float max = kernels.max_value(logits, n);
  if (!std::isfinite(max)) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(max) + std::log(kernels.sum_exp(logits, n, max));
}

namespace {

// Beyond so many values, sorting ids is faster than inserting each value.
constexpr int64_t kInserted = 64;

void sorted_top_values(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  // NaN sorts after every number, so that this is an order whatever the logits are.
  const auto key = [logits](int32_t id) {
    const float value = logits[id];
    return std::isnan(value) ? -std::numeric_limits<float>::infinity() : value;
  };
  const auto before = [&key](int32_t a, int32_t b) {
    return key(a) != key(b) ? key(a) > key(b) : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + k, order.end(), before);
  for (int64_t i = 0; i < k; ++i) {
    ids[i] = order[static_cast<size_t>(i)];
    values[i] = logits[ids[i]];
  }
}

}  // namespace

void top_values(const float* logits, int64_t n, int64_t k, int32_t* ids, float* values) {
  if (k > kInserted && k <= n) {
    sorted_top_values(logits, n, k, ids, values);
    return;
  }
  // Sorted insertion in order of ids: a new value goes after equal ones and must exceed the last.
  int64_t have = 0;
  for (int64_t i = 0; i < n && k > 0; ++i) {
    const float value = logits[i];
    if (have == k && !(value > values[k - 1])) continue;
    int64_t at = have < k ? have++ : k - 1;
    for (; at > 0 && value > values[at - 1]; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = static_cast<int32_t>(i);
  }
}

void start_logprobs(Logprobs& out, int64_t count, int64_t width) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  out.present = true;
  out.width = width;
  out.chosen.assign(static_cast<size_t>(count), kNan);
  out.ids.assign(static_cast<size_t>(count * width), -1);
  out.values.assign(static_cast<size_t>(count * width), kNan);
}

void fill_logprobs(const KernelTable& kernels, const float* logits, int64_t n, int32_t token,
                   int64_t k, Logprobs& out, int64_t i) {
  const double normalizer = log_sum_exp(kernels, logits, n);
  const auto log_probability = [normalizer](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normalizer);
  };
  if (token >= 0) out.chosen[static_cast<size_t>(i)] = log_probability(logits[token]);
  k = std::min({k, n, out.width});
  if (k <= 0 || std::isnan(normalizer)) return;
  int32_t* ids = out.ids.data() + i * out.width;
  float* values = out.values.data() + i * out.width;
  top_values(logits, n, k, ids, values);
  for (int64_t j = 0; j < k; ++j) values[j] = log_probability(values[j]);
}

}  // namespace tidemill
