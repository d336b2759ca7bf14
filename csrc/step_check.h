// What must hold of a step before it may run: nothing in it can make a kernel touch memory that is
// not its own.
#pragma once
#include <cstdint>
#include <vector>

#include "cache.h"
#include "step.h"

namespace tidemill {

struct StepLimits {
  int64_t vocab;
  int64_t max_positions;
  int64_t layers;
  int64_t types;  // kinds of texts that tokens may be of, 0: tokens have no types
  bool causal;
  const KvCache& cache;
  // Which rows of the previous submitted step sample; null when there is none.
  const std::vector<uint8_t>* previous_samples;
};

// Error (Internal), naming the field: such a step is a defect of the caller.
void check_step(const StepInput& step, const StepLimits& limits);

}  // namespace tidemill
