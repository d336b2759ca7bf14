// Filters that drop some of a distribution's tokens: docs/sampling.md has their definitions and order.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "memory/memory.h"

namespace tidemill {

// A row's distribution: z = scaled logits minus their maximum (the largest is 0, -inf is banned), and
// the weights e = exp(z). A dropped token has e = 0.
struct Distribution {
  const float* z;
  float* e;
  int64_t n;
};

struct FilterParams {
  int32_t top_k = 0;     // 0: all
  float top_p = 1.0f;    // 1: all
  double total = 0.0;    // sum of e, for top_p
  double least_e = 0.0;  // tokens with less are dropped; at most 1
  // top_n_sigma: tokens whose logit is more than `sigmas` below `max` are dropped.
  const float* logits = nullptr;
  float max = 0.0f;
  double sigmas = 0.0;
};

// Tokens are ordered by the distance |z - center|, then by id; with center 0 the most likely come first.
// A cut is the last one that is kept. It is found by sums over the tokens within some distances, which
// bracket it; only the tokens in between are sorted.
class Filters {
 public:
  // Drops the tokens that do not pass all filters of `params`, each applied to the same distribution.
  void apply(const Distribution& d, const FilterParams& params);

  // Locally typical sampling: keeps the smallest set with that share of the mass whose information is
  // nearest to the entropy.
  void typical(const Distribution& d, float share);

  // Drops those whose share of the mass is `threshold` or more, except the least likely of them (of
  // equal ones the highest id).
  void drop_top(const Distribution& d, float threshold);

 private:
  struct Cut {
    float distance = std::numeric_limits<float>::infinity();
    int32_t id = std::numeric_limits<int32_t>::max();
    bool tied = false;  // tokens with a higher id are as far
  };

  // Distances between which a cut is: low < its distance <= high; `step` to widen them by.
  struct Bracket {
    float low = -1.0f, high = 200.0f, step = 1.0f;
  };
  template <bool kCount>
  static Bracket bracket(const Distribution& d, float center, double target);

  // The cut behind which at least `target` of the sum is reached: of weights, or of tokens (kCount).
  template <bool kCount>
  Cut find(const Distribution& d, float center, double target);
  // Drops what is beyond the cut.
  void keep(const Distribution& d, float center, const Cut& cut);

  Buffer<int32_t> ids_;
  std::vector<int32_t> ordered_;
};

}  // namespace tidemill
