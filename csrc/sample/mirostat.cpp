#include "sample/mirostat.h"

#include <algorithm>

#include "sample/logprobs.h"
#include "sample/portable_math.h"

namespace tidemill {

namespace {
constexpr int64_t kEstimated = 100;  // tokens that the exponent is estimated from

double log2_of(double x) { return portable_log(x) / kLn2; }
double power(double x, double y) { return portable_exp(y * portable_log(x)); }
}  // namespace

Kept Mirostat::cut(Filters& filters, const Distribution& d, const Kept& kept,
                   const SamplerOptions& options, float mu) {
  if (options.mirostat == 1) return filters.most_likely(d, kept, count(d, kept, mu));
  // Surprise of at most mu: p >= 2^-mu.
  const double least = Filters::mass(d, kept) * portable_exp(-static_cast<double>(mu) * kLn2);
  return filters.at_least(d, kept, least);
}

float Mirostat::moved(const SamplerOptions& options, float mu, double e, double mass) {
  const double surprise = -log2_of(e / mass);
  const double error = surprise - static_cast<double>(options.mirostat_tau);
  return static_cast<float>(static_cast<double>(mu) - static_cast<double>(options.mirostat_eta) * error);
}

// The weights of the most likely tokens are taken for a power law of their rank.
int64_t Mirostat::count(const Distribution& d, const Kept& kept, float mu) {
  const int64_t all = kept.ids == nullptr ? d.n : kept.count;
  const int64_t m = std::min(kEstimated, all);
  ids_.resize(kEstimated);
  values_.resize(kEstimated);
  if (kept.ids == nullptr) {
    top_values(d.z, d.n, m, ids_.data(), values_.data());
  } else {
    const auto values = values_.begin() + static_cast<std::ptrdiff_t>(m);
    std::vector<float>::iterator next = values_.begin();
    std::partial_sort_copy(kept.ids, kept.ids + kept.count, ids_.begin(),
                           ids_.begin() + static_cast<std::ptrdiff_t>(m),
                           [&](int32_t a, int32_t b) { return d.z[a] > d.z[b]; });
    for (auto id = ids_.begin(); next != values; ++id) *next++ = d.z[*id];
  }
  double products = 0.0, squares = 0.0;
  for (int64_t i = 0; i + 1 < m; ++i) {
    const auto at = static_cast<size_t>(i);
    if (values_[at + 1] < -80.0f) break;
    const double t = portable_log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    products += t * (static_cast<double>(values_[at]) - static_cast<double>(values_[at + 1]));
    squares += t * t;
  }
  const double exponent = squares > 0.0 ? products / squares : 0.0;
  if (exponent < 1e-6) return all;
  const auto n = static_cast<double>(d.n);
  const double excess = exponent - 1.0;
  const double ratio = excess > -1e-9 && excess < 1e-9 ? 1.0 / portable_log(n)
                                                       : excess / (1.0 - power(n, -excess));
  const double k = power(ratio * portable_exp(static_cast<double>(mu) * kLn2), 1.0 / exponent);
  return k < 1.0 ? 1 : k > static_cast<double>(all) ? all : static_cast<int64_t>(k);
}

}  // namespace tidemill
