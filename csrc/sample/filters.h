// top-k, top-p and min-p as one cut through the tokens ordered by (value descending, id ascending).
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

#include "memory/memory.h"

namespace tidemill {

// Tokens to keep: z above the cut's, or equal with an id not above the cut's.
struct Cut {
  float z = -std::numeric_limits<float>::infinity();
  int32_t id = std::numeric_limits<int32_t>::max();

  bool keeps(float value, int64_t token) const { return value > z || (value == z && token <= id); }
  // The stricter of two cuts.
  static Cut stricter(const Cut& a, const Cut& b) { return a.keeps(b.z, b.id) ? b : a; }
};

struct FilterParams {
  int32_t top_k;  // 0: all
  float top_p;    // 1: all
  float min_p;    // 0: all
};

// A row's distribution: z = scaled logits minus their maximum (the largest is 0, -inf is banned), e =
// exp(z), total = sum of e.
struct Distribution {
  const float* z;
  const float* e;
  int64_t n;
  double total;
};

// Finds the tokens that pass all three filters, each applied to the same full distribution.
//
// Sorts as little as possible: only tokens near the top are considered (more if the cut is not among
// them), they are counted into bins of z, and only the bin with the cut is sorted.
class Filters {
 public:
  // Ids of the kept tokens, ascending; valid until the next call.
  struct Kept {
    const int32_t* ids;
    int64_t count;
  };
  Kept apply(const Distribution& d, const FilterParams& params);

 private:
  static constexpr int kBins = 512;
  int bin(float z) const {
    const float at = -z * scale_;
    return at < static_cast<float>(kBins - 1) ? static_cast<int>(at) : kBins - 1;
  }
  bool gather(const Distribution& d, float floor, double mass, int64_t wanted);
  void fill_bins(const Distribution& d);
  void order_bin(const Distribution& d, int which);
  Cut cut_top_k(const Distribution& d, int64_t k);
  Cut cut_top_p(const Distribution& d, double mass);

  float scale_ = 0.0f;
  Buffer<int32_t> ids_;  // the candidates, ascending
  int64_t count_ = 0;
  std::vector<int64_t> counts_;
  std::vector<double> masses_;
  std::vector<int32_t> ordered_;
  int ordered_bin_ = -1;
};

}  // namespace tidemill
