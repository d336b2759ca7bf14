// Filters that keep some of a distribution's tokens: docs/sampling.md has their definitions and order.
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "memory/memory.h"

namespace tidemill {

// A row's distribution: z = scaled logits minus their maximum (the largest is 0, -inf is banned), e =
// exp(z), total = sum of e (0 if no filter uses it).
struct Distribution {
  const float* z;
  const float* e;
  int64_t n;
  double total;
};

struct FilterParams {
  int32_t top_k = 0;     // 0: all
  float top_p = 1.0f;    // 1: all
  double least_e = 0.0;  // tokens with less are dropped; at most 1
  // top_n_sigma: tokens whose logit is more than `sigmas` below `max` are dropped.
  const float* logits = nullptr;
  float max = 0.0f;
  double sigmas = 0.0;  // 0: all
  float sigma_floor = -std::numeric_limits<float>::infinity();  // a z below all that it keeps
};

// Ids of kept tokens, ascending; `ids` null: all tokens.
struct Kept {
  const int32_t* ids;
  int64_t count;
};

// An order of tokens: by a key, ascending, then by id. Tokens up to the cut's are kept.
struct Cut {
  float key = std::numeric_limits<float>::infinity();
  int32_t id = std::numeric_limits<int32_t>::max();

  bool keeps(float value, int64_t token) const { return value < key || (value == key && token <= id); }
  // The stricter of two cuts.
  static Cut stricter(const Cut& a, const Cut& b) { return a.keeps(b.key, b.id) ? b : a; }
};

// Sorts as little as possible: only tokens near the top are considered (more if the cut is not among
// them), they are counted into bins of the key, and only the bin with the cut is sorted.
//
// A result is valid until the next call.
class Filters {
 public:
  // Tokens that pass all filters of `params`, each applied to the same full distribution.
  Kept apply(const Distribution& d, const FilterParams& params);

  // Locally typical sampling: of the tokens in `kept`, the smallest set with that share of their mass
  // whose information is nearest to the entropy.
  Kept typical(const Distribution& d, const Kept& kept, float share);

  // Those whose share of the mass of `kept` is `threshold` or more, except the least likely of them (of
  // equal ones the highest id); none if there is only one. `kept` stays valid, the result is unsorted.
  Kept above(const Distribution& d, const Kept& kept, float threshold);

  // Of the tokens in `kept`, the `count` most likely ones (at least 1).
  Kept most_likely(const Distribution& d, const Kept& kept, int64_t count);

  // Those with e >= `least`; the most likely one if there is none.
  Kept at_least(const Distribution& d, const Kept& kept, double least);

  // Sum of the weights of `kept`.
  static double mass(const Distribution& d, const Kept& kept);

 private:
  static constexpr int kBins = 512;

  int bin(float key) const {
    const float at = key * scale_;
    return at < static_cast<float>(kBins - 1) ? static_cast<int>(at) : kBins - 1;
  }
  void gather(const Distribution& d, float floor);
  template <class Key>
  void fill_bins(const Distribution& d, const Key& key);
  template <class Key>
  void order_bin(const Key& key, int which);
  template <class Key>
  Cut cut_count(const Key& key, int64_t k);
  template <class Key>
  Cut cut_mass(const Distribution& d, const Key& key, double mass);

  float scale_ = 0.0f;
  Buffer<int32_t> ids_;  // the candidates, ascending
  int64_t count_ = 0;
  std::vector<int64_t> counts_;
  std::vector<double> masses_;
  std::vector<int32_t> ordered_;
  int ordered_bin_ = -1;
};

}  // namespace tidemill
