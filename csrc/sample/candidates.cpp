#include "sample/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sample/logprobs.h"

namespace tidemill {

void start_candidates(Candidates& out, int64_t rows, int64_t width) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  out.rows = rows;
  out.width = width;
  out.ids.assign(static_cast<size_t>(rows * width), -1);
  out.scores.assign(static_cast<size_t>(rows * width), kNan);
  out.logprobs.assign(static_cast<size_t>(rows * width), kNan);
}

int32_t fill_candidates(const KernelTable& kernels, Sampler& sampler, const SamplingInput& in,
                        const SampleRow& row, const float* logits, int64_t n, float* work,
                        Candidates& out) {
  const double normalizer = log_sum_exp(kernels, logits, n);
  if (std::isnan(normalizer)) return kLogitsNotFinite;
  const auto log_probability = [normalizer](float logit) {
    return static_cast<float>(static_cast<double>(logit) - normalizer);
  };
  for (int64_t i = 0; i < n; ++i) work[i] = log_probability(logits[i]);
  const int32_t failure = sampler.adjust(in, row, work);
  if (failure != 0) return failure;
  const int64_t k = std::min<int64_t>({in.candidates[static_cast<size_t>(row.index)], n, out.width});
  int32_t* ids = out.ids.data() + row.index * out.width;
  float* scores = out.scores.data() + row.index * out.width;
  float* logprobs = out.logprobs.data() + row.index * out.width;
  top_values(work, n, k, ids, scores);
  for (int64_t j = 0; j < k; ++j) {
    if (scores[j] == -std::numeric_limits<float>::infinity()) {
      ids[j] = -1;
    } else {
      logprobs[j] = log_probability(logits[ids[j]]);
    }
  }
  return ids[0];
}

}  // namespace tidemill
