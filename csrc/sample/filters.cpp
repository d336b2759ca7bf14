#include "sample/filters.h"

#include <algorithm>
#include <cmath>

#include "sample/exp_row.h"

namespace tidemill {

namespace {
// Candidates are first the tokens within this many nats of the most likely one: usually few, with
// nearly all of the mass.
constexpr float kNearTop = 10.0f;
// More than the error of e and of a logarithm: what is gathered by z is tested by e afterwards.
constexpr float kSlack = 1e-4f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
}  // namespace

Filters::Kept Filters::apply(const Distribution& d, const FilterParams& params) {
  const int64_t wanted = params.top_k > 0 ? std::min<int64_t>(params.top_k, d.n) : 0;
  const double mass = params.top_p < 1.0f ? static_cast<double>(params.top_p) * d.total : 0.0;
  // The most likely token has e = 1, so e >= min_p means about z >= log(min_p).
  const float floor = params.min_p > 0.0f ? std::log(params.min_p) - kSlack : -kInfinity;
  // If min_p's floor excludes tokens, cuts below it need not be found: min_p is the stricter filter.
  if (!gather(d, std::max(floor, -kNearTop), mass, wanted) && floor < -kNearTop) {
    gather(d, std::max(floor, std::numeric_limits<float>::lowest()), mass, wanted);
  }
  Cut cut;
  if (wanted > 0 || mass > 0.0) {
    fill_bins(d);
    if (wanted > 0 && wanted < count_) cut = Cut::stricter(cut, cut_top_k(d, wanted));
    if (mass > 0.0) cut = Cut::stricter(cut, cut_top_p(d, mass));
  }
  int32_t* const ids = ids_.data();
  const int32_t* const end =
      std::remove_if(ids, ids + count_, [&](int32_t id) {
        return d.e[id] < params.min_p || !cut.keeps(d.z[id], id);
      });
  return {ids, end - ids};
}

// Collects the tokens at or above `floor`; true if every cut is among them.
bool Filters::gather(const Distribution& d, float floor, double mass, int64_t wanted) {
  count_ = gather_above(d.z, d.n, floor, ids_.ensure(d.n + 1));
  double sum = 0.0;
  for (int64_t i = 0; i < count_; ++i) sum += static_cast<double>(d.e[ids_.data()[i]]);
  const bool limits = wanted > 0 || mass > 0.0;
  return limits && (wanted == 0 || count_ >= wanted) && (mass == 0.0 || sum >= mass);
}

void Filters::fill_bins(const Distribution& d) {
  counts_.assign(kBins, 0);
  masses_.assign(kBins, 0.0);
  ordered_bin_ = -1;
  const int32_t* const ids = ids_.data();
  float lowest = 0.0f;
  for (int64_t i = 0; i < count_; ++i) lowest = std::min(lowest, d.z[ids[i]]);
  // Far below the most likely token there is no mass, so the last bin collects the rest.
  scale_ = static_cast<float>(kBins) / std::clamp(-lowest, 1e-6f, 40.0f);
  for (int64_t i = 0; i < count_; ++i) {
    const auto b = static_cast<size_t>(bin(d.z[ids[i]]));
    ++counts_[b];
    masses_[b] += static_cast<double>(d.e[ids[i]]);
  }
}

// Sorts the tokens of a bin by (value descending, id ascending).
void Filters::order_bin(const Distribution& d, int which) {
  if (ordered_bin_ == which) return;
  ordered_bin_ = which;
  ordered_.clear();
  for (int64_t i = 0; i < count_; ++i) {
    if (bin(d.z[ids_.data()[i]]) == which) ordered_.push_back(ids_.data()[i]);
  }
  const float* const z = d.z;
  std::sort(ordered_.begin(), ordered_.end(),
            [z](int32_t a, int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); });
}

Cut Filters::cut_top_k(const Distribution& d, int64_t k) {
  int64_t above = 0;
  int b = 0;
  while (b < kBins - 1 && above + counts_[static_cast<size_t>(b)] < k) {
    above += counts_[static_cast<size_t>(b++)];
  }
  order_bin(d, b);
  const int32_t last = ordered_[static_cast<size_t>(k - above - 1)];
  return {d.z[last], last};
}

Cut Filters::cut_top_p(const Distribution& d, double mass) {
  double above = 0.0;
  int b = 0;
  while (b < kBins - 1 && above + masses_[static_cast<size_t>(b)] < mass) {
    above += masses_[static_cast<size_t>(b++)];
  }
  order_bin(d, b);
  for (const int32_t token : ordered_) {
    above += static_cast<double>(d.e[token]);
    if (above >= mass) return {d.z[token], token};
  }
  return {};  // the candidates do not reach the mass: all are needed
}

}  // namespace tidemill
