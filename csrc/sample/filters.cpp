#include "sample/filters.h"

#include <algorithm>
#include <cmath>

namespace tidemill {

Cut Filters::cut(const float* z, const float* e, int64_t n, float z_min, double total,
                 const FilterParams& params) {
  Cut result;
  if (params.min_p > 0.0f) {
    // The most likely token has e = 1: e >= min_p is z >= log(min_p).
    result = Cut::stricter(result, {static_cast<float>(std::log(static_cast<double>(params.min_p))),
                                    std::numeric_limits<int32_t>::max()});
  }
  const bool by_count = params.top_k > 0 && params.top_k < n;
  const bool by_mass = params.top_p < 1.0f;
  if (!by_count && !by_mass) return result;
  fill_bins(z, e, n, z_min);
  if (by_count) result = Cut::stricter(result, cut_top_k(z, n, params.top_k));
  if (by_mass) {
    result = Cut::stricter(result, cut_top_p(z, e, n, static_cast<double>(params.top_p) * total));
  }
  return result;
}

void Filters::fill_bins(const float* z, const float* e, int64_t n, float z_min) {
  counts_.assign(kBins, 0);
  masses_.assign(kBins, 0.0);
  ordered_bin_ = -1;
  // Beyond 40 nats below the most likely token there is no mass; those share the last bin.
  const float range = std::clamp(-z_min, 1e-6f, 40.0f);
  scale_ = static_cast<float>(kBins) / range;
  for (int64_t i = 0; i < n; ++i) {
    const int b = bin(z[i]);
    ++counts_[static_cast<size_t>(b)];
    masses_[static_cast<size_t>(b)] += static_cast<double>(e[i]);
  }
}

void Filters::order_bin(const float* z, int64_t n, int which) {
  if (ordered_bin_ == which) return;
  ordered_bin_ = which;
  ordered_.clear();
  for (int64_t i = 0; i < n; ++i) {
    if (bin(z[i]) == which) ordered_.push_back(static_cast<int32_t>(i));
  }
  std::sort(ordered_.begin(), ordered_.end(),
            [z](int32_t a, int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); });
}

Cut Filters::cut_top_k(const float* z, int64_t n, int64_t k) {
  int64_t above = 0;
  int b = 0;
  while (b < kBins - 1 && above + counts_[static_cast<size_t>(b)] < k) {
    above += counts_[static_cast<size_t>(b++)];
  }
  order_bin(z, n, b);
  const int32_t last = ordered_[static_cast<size_t>(k - above - 1)];
  return {z[last], last};
}

Cut Filters::cut_top_p(const float* z, const float* e, int64_t n, double mass) {
  double above = 0.0;
  int b = 0;
  while (b < kBins - 1 && above + masses_[static_cast<size_t>(b)] < mass) {
    above += masses_[static_cast<size_t>(b++)];
  }
  order_bin(z, n, b);
  for (const int32_t token : ordered_) {
    above += static_cast<double>(e[token]);
    if (above >= mass) return {z[token], token};
  }
  return {};  // rounding kept the sum below the mass: everything is needed
}

}  // namespace tidemill
