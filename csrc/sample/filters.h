// top-k, top-p and min-p as one cut through the tokens ordered by (value descending, id ascending).
#pragma once
#include <cstdint>
#include <limits>
#include <vector>

namespace tidemill {

// Tokens that are kept: z above the cut's, or equal and of an id not above the cut's.
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

// Finds cuts without sorting the row: tokens are counted into bins of z, and only the bin in which
// a cut falls is ordered.
class Filters {
 public:
  // z: scaled logits minus their maximum (so the largest is 0), -inf for banned; e = exp(z); z_min
  // the smallest finite z; total = the sum of e. All three filters are computed on this one
  // distribution, and a token is kept when all three keep it.
  Cut cut(const float* z, const float* e, int64_t n, float z_min, double total,
          const FilterParams& params);

 private:
  static constexpr int kBins = 2048;
  int bin(float z) const {
    const float at = -z * scale_;
    return at < static_cast<float>(kBins - 1) ? static_cast<int>(at) : kBins - 1;
  }
  void fill_bins(const float* z, const float* e, int64_t n, float z_min);
  // Tokens of a bin in order.
  void order_bin(const float* z, int64_t n, int which);
  Cut cut_top_k(const float* z, int64_t n, int64_t k);
  Cut cut_top_p(const float* z, const float* e, int64_t n, double mass);

  float scale_ = 0.0f;
  std::vector<int64_t> counts_;
  std::vector<double> masses_;
  std::vector<int32_t> ordered_;
  int ordered_bin_ = -1;
};

}  // namespace tidemill
