#include "sample/filters.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sample/exp_row.h"

namespace tidemill {

namespace {

// Distances that bracket a cut at first: nearly all of the mass is within ten nats.
constexpr std::array<float, kDistances> kFirst = {0.5f, 1.0f, 2.0f, 4.0f, 6.0f, 8.0f, 10.0f};
// e is 0 beyond it, so no mass is.
constexpr float kFarthest = 200.0f;
constexpr int kNarrowings = 3;
// So few tokens are sorted without narrowing the bracket further.
constexpr float kFew = 256.0f;

template <bool kCount>
double sum_up_to(const Distribution& d, float center, float distance) {
  if (!kCount) return sum_within(d.z, d.e, d.n, center, distance);
  std::array<float, kDistances> distances, counts;
  distances.fill(distance);
  counts_within(d.z, d.n, center, distances.data(), counts.data());
  return static_cast<double>(counts[0]);
}

}  // namespace

void Filters::apply(const Distribution& d, const FilterParams& params) {
  // Both cuts are found before either is applied: they look at the same distribution.
  Cut k, p;
  if (params.top_k > 0) k = find<true>(d, 0.0f, params.top_k);
  if (params.top_p < 1.0f) p = find<false>(d, 0.0f, static_cast<double>(params.top_p) * params.total);
  if (params.top_k > 0) keep(d, 0.0f, k);
  if (params.top_p < 1.0f) keep(d, 0.0f, p);
  if (params.least_e > 0.0) drop_light(d.e, d.n, params.least_e);
  if (params.logits != nullptr) drop_low(d.e, params.logits, d.n, params.max, params.sigmas);
}

// A token's information is log(sum of e) - z, and its distance from the entropy |z - mean of z|.
void Filters::typical(const Distribution& d, float share) {
  const double total = sum_row(d.e, d.n);
  const auto center = static_cast<float>(dot_row(d.e, d.z, d.n) / total);
  keep(d, center, find<false>(d, center, static_cast<double>(share) * total));
}

void Filters::drop_top(const Distribution& d, float threshold) {
  const double least = static_cast<double>(threshold) * sum_row(d.e, d.n);
  // As a float it may be rounded up.
  const int64_t count = gather_above(d.e, d.n, static_cast<float>(least * (1.0 - 1e-6)), ids_.ensure(d.n + 1));
  ordered_.clear();
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids_.data()[i];
    if (d.e[id] > 0.0f && static_cast<double>(d.e[id]) >= least) ordered_.push_back(id);
  }
  if (ordered_.size() < 2) return;
  const int32_t last = *std::min_element(ordered_.begin(), ordered_.end(), [&](int32_t a, int32_t b) {
    return d.z[a] < d.z[b] || (d.z[a] == d.z[b] && a > b);
  });
  for (const int32_t id : ordered_) {
    if (id != last) d.e[id] = 0.0f;
  }
}

template <bool kCount>
Filters::Bracket Filters::bracket(const Distribution& d, float center, double target) {
  std::array<float, kDistances> distances = kFirst, sums;
  Bracket found;
  float below = 0.0f, above = static_cast<float>(d.n);  // sums within low and high
  for (int pass = 0;; ++pass) {
    if (kCount) {
      counts_within(d.z, d.n, center, distances.data(), sums.data());
    } else {
      rough_sums_within(d.z, d.e, d.n, center, distances.data(), sums.data());
    }
    for (size_t i = 0; i < kDistances; ++i) {
      if (static_cast<double>(sums[i]) >= target) {
        found.high = distances[i];
        above = sums[i];
        break;
      }
      found.low = distances[i];
      below = sums[i];
    }
    const float begin = std::max(found.low, 0.0f), step = (found.high - begin) / (kDistances + 1);
    found.step = step;
    if (pass == kNarrowings || (kCount && above - below < kFew)) return found;
    for (size_t i = 0; i < kDistances; ++i) distances[i] = begin + step * static_cast<float>(i + 1);
  }
}

template <bool kCount>
Filters::Cut Filters::find(const Distribution& d, float center, double target) {
  Bracket b = bracket<kCount>(d, center, target);
  const float* const z = d.z;
  for (;; b.step *= 4.0f) {  // again where a rough sum misled: then the bracket is widened
    double sum = 0.0;
    if (b.low >= 0.0f) sum = sum_up_to<kCount>(d, center, b.low);
    if (sum >= target) {
      b.low = b.low > b.step ? b.low - b.step : -1.0f;
      continue;
    }
    const int64_t count = gather_between(z, d.n, center, b.low, b.high, ids_.ensure(d.n + 1));
    ordered_.assign(ids_.data(), ids_.data() + count);
    std::sort(ordered_.begin(), ordered_.end(), [z, center](int32_t i, int32_t j) {
      const float x = std::fabs(z[i] - center), y = std::fabs(z[j] - center);
      return x < y || (x == y && i < j);
    });
    for (size_t i = 0; i < ordered_.size(); ++i) {
      const int32_t id = ordered_[i];
      const float distance = std::fabs(z[id] - center);
      sum += kCount ? 1.0 : static_cast<double>(d.e[id]);
      if (sum < target) continue;
      const bool last = i + 1 == ordered_.size();
      return {distance, id, !last && std::fabs(z[ordered_[i + 1]] - center) == distance};
    }
    if (b.high >= kFarthest) return {};  // rounding, or fewer tokens than wanted: all are needed
    b.high = std::min(b.high + b.step, kFarthest);
  }
}

void Filters::keep(const Distribution& d, float center, const Cut& cut) {
  if (std::isinf(cut.distance)) return;  // all
  drop_far(d.e, d.z, d.n, center, cut.distance);
  if (!cut.tied) return;
  const int64_t count = gather_between(d.z, d.n, center, std::nextafter(cut.distance, -1.0f),
                                       cut.distance, ids_.ensure(d.n + 1));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = ids_.data()[i];
    if (id > cut.id) d.e[id] = 0.0f;
  }
}

}  // namespace tidemill
