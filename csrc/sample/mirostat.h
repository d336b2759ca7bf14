// Mirostat (Basu et al. 2021): cuts the tail so that the surprise of the tokens stays near tau bits. Its
// state mu moves with each token that is chosen.
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/step.h"
#include "sample/filters.h"

namespace tidemill {

class Mirostat {
 public:
  // The tokens of `kept` to draw from.
  Kept cut(Filters& filters, const Distribution& d, const Kept& kept, const SamplerOptions& options,
           float mu);

  // mu after a token with the weight e was drawn from tokens with this mass.
  static float moved(const SamplerOptions& options, float mu, double e, double mass);

 private:
  // How many of the most likely tokens version 1 keeps.
  int64_t count(const Distribution& d, const Kept& kept, float mu);

  std::vector<int32_t> ids_;
  std::vector<float> values_;
};

}  // namespace tidemill
