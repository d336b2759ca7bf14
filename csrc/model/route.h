// Routing of tokens to experts.
#pragma once
#include <cstdint>
#include <vector>

namespace tidemill {

enum class Scoring : int { Softmax, Sigmoid, SoftmaxChosen, SparseMixer, SigmoidChosen };

// See Moe in models/spec.py.
struct Routing {
  int64_t experts = 0, top_k = 0;
  Scoring scoring = Scoring::Softmax;
  bool normalize = true;
  float scale = 1;
  const float* e_score_correction_bias = nullptr;
  int64_t groups = 1, top_groups = 1;
  float jitter = 0;  // of SparseMixer
  float logit_scale = 1;
  const float* expert_scales = nullptr;  // factors of the chosen experts' weights, or null
};

// Routes one token: writes `chosen` and `weights` [top_k], best first; ties go to the lowest id.
// `scratch` is resized as needed.
void route(const Routing& routing, const float* logits, std::vector<float>& scratch,
           int32_t* chosen, float* weights);

}  // namespace tidemill
