#include "sample/filters.h"

#include <algorithm>
#include <cmath>

#include "sample/exp_row.h"

namespace tidemill {

namespace {

// Candidates are first the tokens within this many nats of the most likely one (or of the mean): usually
// few, with nearly all of the mass.
constexpr float kNearTop = 10.0f;
// More than the error of e and of a logarithm: what is gathered by z is tested exactly afterwards.
constexpr float kSlack = 1e-4f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();

// Sum of the weights of the listed tokens, in order of their ids.
double sum_of(const float* e, const int32_t* ids, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(e[ids[i]]);
  return sum;
}

}  // namespace

Kept Filters::apply(const Distribution& d, const FilterParams& params) {
  const int64_t wanted = params.top_k > 0 ? std::min<int64_t>(params.top_k, d.n) : 0;
  const double mass = params.top_p < 1.0f ? static_cast<double>(params.top_p) * d.total : 0.0;
  float floor = params.sigma_floor;
  if (params.least_e > 0.0) {
    floor = std::max(floor, static_cast<float>(std::log(params.least_e)) - kSlack);
  }
  const bool limits = wanted > 0 || mass > 0.0;
  gather(d, std::max(floor, -kNearTop));
  const bool complete = limits && (wanted == 0 || count_ >= wanted) &&
                        (mass == 0.0 || sum_of(d.e, ids_.data(), count_) >= mass);
  // If a floor excludes tokens, cuts below it need not be found: it is the stricter filter.
  if (!complete && floor < -kNearTop) gather(d, std::max(floor, kLowest));
  const auto key = [z = d.z](int32_t id) { return -z[id]; };
  Cut cut;
  if (limits) {
    fill_bins(d, key);
    if (wanted > 0 && wanted < count_) cut = Cut::stricter(cut, cut_count(key, wanted));
    if (mass > 0.0) cut = Cut::stricter(cut, cut_mass(d, key, mass));
  }
  int32_t* const ids = ids_.data();
  int32_t* const end = std::remove_if(ids, ids + count_, [&](int32_t id) {
    if (static_cast<double>(d.e[id]) < params.least_e || !cut.keeps(key(id), id)) return true;
    return params.sigmas > 0.0 && static_cast<double>(params.logits[id] - params.max) < -params.sigmas;
  });
  count_ = end - ids;
  return {ids, count_};
}

double Filters::mass(const Distribution& d, const Kept& kept) {
  return kept.ids == nullptr ? sum_row(d.e, d.n) : sum_of(d.e, kept.ids, kept.count);
}

Kept Filters::most_likely(const Distribution& d, const Kept& kept, int64_t count) {
  if (kept.ids == nullptr) {
    FilterParams params;
    params.top_k = static_cast<int32_t>(count);
    return apply(d, params);
  }
  if (count >= count_) return kept;
  const auto key = [z = d.z](int32_t id) { return -z[id]; };
  fill_bins(d, key);
  const Cut cut = cut_count(key, count);
  int32_t* const ids = ids_.data();
  count_ = std::remove_if(ids, ids + count_,
                          [&](int32_t id) { return !cut.keeps(key(id), id); }) - ids;
  return {ids, count_};
}

Kept Filters::at_least(const Distribution& d, const Kept& kept, double least) {
  if (kept.ids == nullptr) {
    // All: the largest weight is 1 unless XTC took the token out.
    gather(d, least > 0.0 ? std::max(kLowest, static_cast<float>(std::log(least)) - kSlack) : kLowest);
  }
  int32_t* const ids = ids_.data();
  int32_t* const end = std::remove_if(ids, ids + count_, [&](int32_t id) {
    return static_cast<double>(d.e[id]) < least || d.e[id] == 0.0f;
  });
  if (end == ids) return most_likely(d, kept, 1);
  count_ = end - ids;
  return {ids, count_};
}

// A token's information is log(total) - z, and its distance from the entropy |z - mean of z|.
Kept Filters::typical(const Distribution& d, const Kept& kept, float share) {
  double mean = 0.0;
  const double total = mass(d, kept), target = static_cast<double>(share) * total;
  if (kept.ids == nullptr) {
    mean = dot_row(d.e, d.z, d.n) / total;
  } else {
    for (int64_t i = 0; i < kept.count; ++i) {
      const int32_t id = kept.ids[i];
      if (d.e[id] > 0.0f) mean += static_cast<double>(d.e[id]) * static_cast<double>(d.z[id]);
    }
    mean /= total;
  }
  const auto key = [z = d.z, center = static_cast<float>(mean)](int32_t id) {
    return std::fabs(z[id] - center);
  };
  if (kept.ids == nullptr) {
    gather(d, static_cast<float>(mean) - kNearTop);
    double near = 0.0;
    for (int64_t i = 0; i < count_; ++i) {
      const int32_t id = ids_.data()[i];
      if (key(id) < kNearTop - kSlack) near += static_cast<double>(d.e[id]);
    }
    if (near < target) gather(d, kLowest);
  }
  fill_bins(d, key);
  const Cut cut = cut_mass(d, key, target);
  int32_t* const ids = ids_.data();
  count_ = std::remove_if(ids, ids + count_,
                          [&](int32_t id) { return !cut.keeps(key(id), id); }) - ids;
  return {ids, count_};
}

Kept Filters::above(const Distribution& d, const Kept& kept, float threshold) {
  const double least = static_cast<double>(threshold) * mass(d, kept);
  ordered_.clear();
  ordered_bin_ = -1;
  if (kept.ids == nullptr) {
    gather(d, std::max(kLowest, static_cast<float>(std::log(least)) - kSlack));
  }
  for (int64_t i = 0; i < count_; ++i) {
    const int32_t id = ids_.data()[i];
    if (static_cast<double>(d.e[id]) >= least) ordered_.push_back(id);
  }
  if (ordered_.size() < 2) return {ordered_.data(), 0};
  const auto last = std::min_element(ordered_.begin(), ordered_.end(), [&](int32_t a, int32_t b) {
    return d.z[a] < d.z[b] || (d.z[a] == d.z[b] && a > b);
  });
  ordered_.erase(last);
  return {ordered_.data(), static_cast<int64_t>(ordered_.size())};
}

// Collects the tokens at or above `floor`.
void Filters::gather(const Distribution& d, float floor) {
  count_ = gather_above(d.z, d.n, floor, ids_.ensure(d.n + 1));
}

template <class Key>
void Filters::fill_bins(const Distribution& d, const Key& key) {
  counts_.assign(kBins, 0);
  masses_.assign(kBins, 0.0);
  ordered_bin_ = -1;
  const int32_t* const ids = ids_.data();
  float highest = 0.0f;
  for (int64_t i = 0; i < count_; ++i) highest = std::max(highest, key(ids[i]));
  // Far from the most likely token there is no mass, so the last bin collects the rest.
  scale_ = static_cast<float>(kBins) / std::clamp(highest, 1e-6f, 40.0f);
  for (int64_t i = 0; i < count_; ++i) {
    const auto b = static_cast<size_t>(bin(key(ids[i])));
    ++counts_[b];
    masses_[b] += static_cast<double>(d.e[ids[i]]);
  }
}

// Sorts the tokens of a bin by (key, id).
template <class Key>
void Filters::order_bin(const Key& key, int which) {
  if (ordered_bin_ == which) return;
  ordered_bin_ = which;
  ordered_.clear();
  for (int64_t i = 0; i < count_; ++i) {
    if (bin(key(ids_.data()[i])) == which) ordered_.push_back(ids_.data()[i]);
  }
  std::sort(ordered_.begin(), ordered_.end(), [&](int32_t a, int32_t b) {
    return key(a) < key(b) || (key(a) == key(b) && a < b);
  });
}

// The first k tokens.
template <class Key>
Cut Filters::cut_count(const Key& key, int64_t k) {
  int64_t above = 0;
  int b = 0;
  while (b < kBins - 1 && above + counts_[static_cast<size_t>(b)] < k) {
    above += counts_[static_cast<size_t>(b++)];
  }
  order_bin(key, b);
  const int32_t last = ordered_[static_cast<size_t>(k - above - 1)];
  return {key(last), last};
}

// The first tokens that reach the mass.
template <class Key>
Cut Filters::cut_mass(const Distribution& d, const Key& key, double mass) {
  double above = 0.0;
  int b = 0;
  while (b < kBins - 1 && above + masses_[static_cast<size_t>(b)] < mass) {
    above += masses_[static_cast<size_t>(b++)];
  }
  order_bin(key, b);
  for (const int32_t token : ordered_) {
    above += static_cast<double>(d.e[token]);
    if (above >= mass) return {key(token), token};
  }
  return {};  // the candidates do not reach the mass: all are needed
}

}  // namespace tidemill
