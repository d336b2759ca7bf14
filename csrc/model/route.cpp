#include "model/route.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tidemill {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Softmax of `count` values in place; -inf stays 0.
void softmax(float* x, int64_t count) {
  float largest = kNever;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, x[i]);
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += x[i] = std::exp(x[i] - largest);
  for (int64_t i = 0; i < count; ++i) x[i] /= sum;
}

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// Index of the largest value not taken yet; ties go to the first.
int64_t best_of(const float* x, const float* taken, int64_t count) {
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (taken[i] == 0 && (best < 0 || x[i] > x[best])) best = i;
  }
  return best;
}

// Removes the experts of all but the best groups. A group's score is its best expert's, or with a score
// score correction bias the sum of its two best (DeepSeek-V3, section 2.1.2).
void leave_groups(const Routing& r, const float* choice, float* taken) {
  const int64_t size = r.experts / r.groups;
  std::vector<float> rating(static_cast<size_t>(r.groups)), used(rating.size(), 0.0f);
  for (int64_t g = 0; g < r.groups; ++g) {
    float first = kNever, second = kNever;
    for (int64_t i = g * size; i < (g + 1) * size; ++i) {
      if (choice[i] > first) {
        second = first;
        first = choice[i];
      } else if (choice[i] > second) {
        second = choice[i];
      }
    }
    rating[static_cast<size_t>(g)] = r.e_score_correction_bias && size > 1 ? first + second : first;
  }
  for (int64_t n = 0; n < r.top_groups; ++n) {
    used[static_cast<size_t>(best_of(rating.data(), used.data(), r.groups))] = 1;
  }
  for (int64_t i = 0; i < r.experts; ++i) {
    if (used[static_cast<size_t>(i / size)] == 0) taken[i] = 1;
  }
}

// Phi-3.5-MoE's rule (Liu et al. 2024, "GRIN", section 2): the best expert by softmax among those whose
// logits are close to the best, then the same without it.
void sparse_mixer(const Routing& r, const float* logits, std::vector<float>& scratch,
                  int32_t* chosen, float* weights) {
  const auto count = static_cast<size_t>(r.experts);
  scratch.assign(2 * count, 0.0f);
  float *near = scratch.data(), *taken = near + count;
  for (int64_t n = 0; n < r.top_k; ++n) {
    const int64_t best = best_of(logits, taken, r.experts);
    const float largest = logits[best];
    for (int64_t i = 0; i < r.experts; ++i) {
      const float factor = std::max(std::fabs(logits[i]), largest);
      const bool far = (largest - logits[i]) / factor > 2 * r.jitter;
      near[i] = taken[i] != 0 || far ? kNever : logits[i];
    }
    softmax(near, r.experts);
    chosen[n] = static_cast<int32_t>(best);
    weights[n] = near[best];
    taken[best] = 1;
  }
}

}  // namespace

void route(const Routing& r, const float* logits, std::vector<float>& scratch, int32_t* chosen,
           float* weights) {
  if (r.scoring == Scoring::SparseMixer) return sparse_mixer(r, logits, scratch, chosen, weights);
  const auto count = static_cast<size_t>(r.experts);
  scratch.assign(3 * count, 0.0f);
  float *score = scratch.data(), *choice = score + count, *taken = choice + count;
  for (size_t i = 0; i < count; ++i) score[i] = r.logit_scale * logits[i];
  if (r.scoring == Scoring::Softmax) softmax(score, r.experts);
  if (r.scoring == Scoring::Sigmoid) {
    for (size_t i = 0; i < count; ++i) score[i] = sigmoid(score[i]);
  }
  for (size_t i = 0; i < count; ++i) choice[i] = score[i] + (r.e_score_correction_bias ? r.e_score_correction_bias[i] : 0.0f);
  if (r.groups > 1) leave_groups(r, choice, taken);
  for (int64_t n = 0; n < r.top_k; ++n) {
    const int64_t best = best_of(choice, taken, r.experts);
    chosen[n] = static_cast<int32_t>(best);
    weights[n] = score[best];
    taken[best] = 1;
  }
  if (r.scoring == Scoring::SoftmaxChosen) softmax(weights, r.top_k);
  if (r.scoring == Scoring::SigmoidChosen) {
    for (int64_t n = 0; n < r.top_k; ++n) weights[n] = sigmoid(weights[n]);
  }
  // The sum of sigmoids may be close to zero: DeepSeek-V3's code adds the same epsilon.
  float sum = r.scoring == Scoring::Sigmoid ? 1e-20f : 0.0f;
  for (int64_t n = 0; n < r.top_k; ++n) sum += weights[n];
  const float factor = r.normalize && r.scoring != Scoring::SoftmaxChosen ? r.scale / sum : r.scale;
  for (int64_t n = 0; n < r.top_k; ++n) {
    weights[n] *= factor;
    if (r.expert_scales != nullptr) weights[n] *= r.expert_scales[chosen[n]];
  }
}

}  // namespace tidemill
